"""Certificates for tests: a CA and a server certificate by trustme, learners by their id."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

LIFE = datetime.timedelta(days=1)


class Authority:
    """A CA with its files in a folder of the test."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        server = self._authority.issue_cert("127.0.0.1")
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        server.private_key_pem.write_to_path(str(self.key))
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))

    def flags(self, *, mutual: bool) -> tuple[str, ...]:
        """The flags of a syncer with this certificate."""
        flags = ("--tls-cert", str(self.certificate), "--tls-key", str(self.key))
        return (*flags, "--tls-client-ca", str(self.ca)) if mutual else flags

    def client(self, *uris: str, expired: bool = False) -> ssl.SSLContext:
        """A context that trusts this CA and, with URIs, shows a certificate that carries them."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if uris:
            context.load_cert_chain(self.issue(uris, expired=expired))
        return context

    def learner(self, learner_id: int) -> ssl.SSLContext:
        """A context with the certificate of one learner."""
        return self.client(f"yeto:learner:{learner_id}")

    def issue(self, uris: tuple[str, ...], *, expired: bool = False) -> Path:
        """A PEM file with a certificate for these URIs, and its key. trustme itself knows host names only."""
        issuer = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        signer = serialization.load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        until = now - LIFE if expired else now + LIFE
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "learner")]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * LIFE)
            .not_valid_after(until)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]), False
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                False,
            )
            .sign(signer, hashes.SHA256())
        )
        number = len(list(self._folder.glob("client*.pem")))
        path = self._folder / f"client{number}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return path
