"""Certificates for tests, signed by their own authority."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """It signs certificates for localhost."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("Lockstep tests")
        self.ca_file = directory / "ca.pem"
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        signed = _begin(self._name, self._name, self._key).add_extension(constraints, critical=True)
        self.ca_file.write_bytes(_pem(signed.sign(self._key, hashes.SHA256())))

    def sign(self, name: str = "server", *, password: bytes | None = None) -> tuple[Path, Path]:
        """The files of a new certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])
        certificate = _begin(_name("localhost"), self._name, key).add_extension(names, critical=False)
        cert_file, key_file = self._directory / f"{name}.crt", self._directory / f"{name}.key"
        cert_file.write_bytes(_pem(certificate.sign(self._key, hashes.SHA256())))
        packing = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        written = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, packing)
        key_file.write_bytes(written)
        key_file.chmod(0o600)
        return cert_file, key_file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
