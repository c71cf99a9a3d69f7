"""Certificates of one run: of an authority of our own, and of itself."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM
ADDRESS = "127.0.0.1"


def key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """What a key is for: an authority signs certificates, a server a handshake."""
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **dict.fromkeys((*others, "decipher_only"), False),
    )


def builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, *, days: int) -> x509.CertificateBuilder:
    """A certificate for a key that ends after ``days``, or has ended already."""
    now = dt.datetime.now(dt.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=10))
        .not_valid_after(now + dt.timedelta(days=days))
    )


def names_of(*names: str) -> x509.SubjectAlternativeName:
    """Names and addresses of a server."""
    found: list[x509.GeneralName] = []
    for name in names:
        is_address = name.replace(".", "").isdecimal() or ":" in name
        found.append(x509.IPAddress(ipaddress.ip_address(name)) if is_address else x509.DNSName(name))
    return x509.SubjectAlternativeName(found)


def private_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key, as a server reads it."""
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


class Authority:
    """Signs certificates; its own is at ``bundle``. Its key is kept nowhere."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = (
            self._builder(name, self._key, days=1)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage(signs_certificates=True), critical=True)
        )
        self.bundle = directory / "authority.pem"
        self.bundle.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(PEM))

    def _builder(self, subject: str, key: ec.EllipticCurvePrivateKey, *, days: int) -> x509.CertificateBuilder:
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        made = builder(subject, self._name, key, days=days)
        # Newer checks (Python 3.13, RFC 5280 strictly, rustls) want these extensions, and those of a server below.
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return made.add_extension(own, critical=False)

    def signed(self, *names: str, days: int = 1) -> tuple[bytes, bytes]:
        """A key, and a certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = (
            self._builder("test", key, days=days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(names_of(*names), critical=False)
        )
        return private_bytes(key), made.sign(self._key, hashes.SHA256()).public_bytes(PEM)

    def context(self, *names: str, days: int = 1) -> ssl.SSLContext:
        """A server's context with a certificate for these names; it ended already for negative ``days``."""
        path = self._directory / "server.pem"
        path.write_bytes(b"".join(self.signed(*names, days=days)))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(path)
        return context


def write_certificates(directory: Path) -> Path:
    """Write ``server.pem`` and ``server.key`` for this machine; the path of the certificate to trust."""
    authority = Authority(directory, "aioprefetch benchmark authority")
    private, certificate = authority.signed("localhost", ADDRESS)
    (directory / "server.key").write_bytes(private)
    (directory / "server.pem").write_bytes(certificate)
    return authority.bundle


def self_signed(folder: Path, address: str, *, days: int) -> Path:
    """A certificate for an address that nothing but itself has signed, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = builder("test", "test", key, days=days).add_extension(names_of(address), critical=False)
    path = folder / "certificate.pem"
    path.write_bytes(private_bytes(key) + made.sign(key, hashes.SHA256()).public_bytes(PEM))
    return path
