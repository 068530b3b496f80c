"""Every merge rule once more, slowly and obviously: Python floats, one element at a time, exact sums.

Nothing here shares code with the product. The results are f64, so they agree with the product within the
roundings of its f32 steps, and never bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Vector = list[float]
Matrix = list[Vector]


def dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(left, right, strict=True))


def norm(vector: Sequence[float]) -> float:
    return math.sqrt(dot(vector, vector))


def avg(gradients: Sequence[Vector], weights: Sequence[float]) -> Vector:
    total = math.fsum(weights)
    if total == 0:
        return [0.0 for _ in gradients[0]]
    return [dot(column, weights) / total for column in zip(*gradients, strict=True)]


def rda(gradients: Sequence[Vector], weights: Sequence[float]) -> Vector:
    total = math.fsum(weights)
    if total == 0:
        return [0.0 for _ in gradients[0]]
    norms = [norm(gradient) for gradient in gradients]
    units = [
        [x / length for x in gradient] if length else list(gradient)
        for gradient, length in zip(gradients, norms, strict=True)
    ]
    direction = avg(units, weights)
    length = norm(direction)
    if length < 1e-12:
        return avg(gradients, weights)
    radius = dot(norms, weights) / total
    return [radius * x / length for x in direction]


def heloco(gradient: Vector, momentum: Vector) -> Vector:
    length, against = norm(gradient), norm(momentum)
    if length < 1e-8 or against < 1e-8:
        return list(gradient)
    cosine = dot(gradient, momentum) / (length * against)
    if cosine >= 0.2:
        return list(gradient)
    confidence = length / (length + 3 * against + 1e-8)
    if cosine < 0:
        beta = min(0.5 * -cosine * confidence, 0.5)
        return [d - beta * cosine * length / against * m for d, m in zip(gradient, momentum, strict=True)]
    turn = min((1 - cosine) * confidence, 1.0)
    blend = [(1 - turn) * d / length + turn * m / against for d, m in zip(gradient, momentum, strict=True)]
    return [x * length / max(norm(blend), 1e-8) for x in blend]


def nesterov(params: Vector, momentum: Vector, delta: Vector, lr: float, mu: float) -> tuple[Vector, Vector]:
    new = [mu * b + d for b, d in zip(momentum, delta, strict=True)]
    moved = [p - lr * (d + mu * b) for p, d, b in zip(params, delta, new, strict=True)]
    return moved, new


def singular_vectors(matrix: Matrix) -> tuple[Matrix, Vector]:
    """Orthonormal columns (as rows of the result) and eigenvalues of matrix * matrix^T, by cyclic Jacobi."""
    size = len(matrix)
    gram = [[dot(a, b) for b in matrix] for a in matrix]
    basis = [[float(i == j) for j in range(size)] for i in range(size)]
    for _ in range(64):
        off = math.fsum(gram[i][j] ** 2 for i in range(size) for j in range(size) if i != j)
        if off <= max(math.fsum(gram[i][i] ** 2 for i in range(size)), 2.3e-308) * 1e-30:
            break
        for p in range(size):
            for r in range(p + 1, size):
                if gram[p][r] == 0:
                    continue
                tau = (gram[r][r] - gram[p][p]) / (2 * gram[p][r])
                tangent = math.copysign(1, tau) / (abs(tau) + math.hypot(1, tau))
                cosine = 1 / math.hypot(1, tangent)
                sine = tangent * cosine
                for rows in (gram, basis):  # rotate rows p and r ...
                    rows[p], rows[r] = (
                        [cosine * x - sine * y for x, y in zip(rows[p], rows[r], strict=True)],
                        [sine * x + cosine * y for x, y in zip(rows[p], rows[r], strict=True)],
                    )
                for row in gram:  # ... and columns
                    row[p], row[r] = cosine * row[p] - sine * row[r], sine * row[p] + cosine * row[r]
    return basis, [max(gram[i][i], 0.0) for i in range(size)]


def iso(matrix: Matrix) -> Matrix:
    """By the small Gram matrix and Jacobi rotations, like the reference implementation's scalar backend."""
    if len(matrix) > len(matrix[0]):
        return [list(row) for row in zip(*iso([list(row) for row in zip(*matrix, strict=True)]), strict=True)]
    basis, squares = singular_vectors(matrix)
    values = [math.sqrt(square) for square in squares]
    mean = math.fsum(values) / len(values)
    gains = [mean / value if value > 1e-10 * max(values) else 0.0 for value in values]
    size, width = len(matrix), len(matrix[0])
    turn = [
        [
            math.fsum(gain * row[i] * row[j] for gain, row in zip(gains, basis, strict=True))
            for j in range(size)
        ]
        for i in range(size)
    ]
    return [
        [math.fsum(turn[i][k] * matrix[k][j] for k in range(size)) for j in range(width)] for i in range(size)
    ]
