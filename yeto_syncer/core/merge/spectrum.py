"""iso: flatten the singular spectrum of an averaged matrix."""

from __future__ import annotations

import functools

import numpy as np
from threadpoolctl import threadpool_limits

from yeto_proto._generated.constants import ISO_CUTOFF
from yeto_syncer.core.merge.arrays import F32, F64, flat


@functools.cache
def hold_blas() -> None:
    """Keeps the BLAS library of this process at one thread, from the first iso merge on (D30).

    A BLAS that splits its sums over cores rounds differently on another machine. The setting belongs to the
    whole process, so two merges that each set it and put it back could undo each other in the middle of a
    decomposition; therefore it is set once and stays. A syncer has no other use for BLAS, and its merge pool
    keeps the cores busy with several matrices.
    """
    threadpool_limits(limits=1, user_api="blas")


def flatten(matrix: F32) -> F32:
    """`iso` of a contiguous 2-D array. Holds about 4 times the matrix in f64, with factors and work space."""
    hold_blas()
    exact: F64 = matrix.astype(np.float64)
    if not np.isfinite(exact).all():
        return np.full_like(matrix, np.nan)
    try:
        left, values, right = np.linalg.svd(exact, full_matrices=False)
    except np.linalg.LinAlgError:  # LAPACK gave up
        return np.full_like(matrix, np.nan)
    if values[0] == 0.0:
        return matrix.copy()
    mean = np.add.reduce(values) / values.size
    left *= np.where(values > ISO_CUTOFF * values[0], mean, 0.0)
    return np.matmul(left, right, out=exact).astype(np.float32)


def iso(matrix: F32) -> F32:
    """U diag(s') V^T for matrix = U diag(s) V^T, where s'_i = mean(s) if s_i > 1e-10 max(s), else 0.

    The mean is over all min(rows, cols) singular values, dropped ones included. `matrix`: the averaged (and,
    before that, corrected) outer gradient of one tensor, f32, rows x cols; gives a new f32 array. The
    decomposition is `numpy.linalg.svd` in f64, rounded to f32 once at the end, with BLAS held to one thread
    in this process from the first call on; compare by tolerance. A zero matrix and a 1-D array (one singular
    value) come back unchanged. A matrix with NaN or inf, or one that LAPACK cannot decompose, gives NaN
    everywhere, and `run` then refuses the merge (D33). Source: protocol text, "Iso direct-averages a matrix
    gradient and flattens its singular spectrum"; arXiv 2607.03011 (IsoLoCo). Raises BadArgument for other
    dtypes.
    """
    values = flat(matrix, "matrix")
    if matrix.ndim != 2 or matrix.size == 0:
        return matrix.copy()
    with np.errstate(all="ignore"):
        return flatten(values.reshape(matrix.shape))
