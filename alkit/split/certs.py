"""A small certificate authority for a lab: one for the server, one for each device.

    authority.pem  authority.key      stays with whoever makes certificates
    server.pem     server.key         goes to the server
    device-0.pem   device-0.key       goes to device 0, with authority.pem

Keys are files that only their owner may read. A device's certificate carries its number, so no
device can speak for another one.
"""

import datetime
import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alkit.data.extras import extra

with extra("split", "a certificate"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL = ("localhost", "127.0.0.1")
NAME = "alkit-server"  # in the server's certificate


@dataclass(frozen=True)
class Certificates:
    """Who one is, and who says so: paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key."""
        files = self.authority, self.certificate, self.key
        authority, certificate, key = (each.read_bytes() for each in files)
        return authority, certificate, key


def make(
    folder: str | Path, devices: int, hosts: Sequence[str] = (), days: int = 365
) -> list[Path]:
    """Make an authority, and certificates for a server and devices; return the files.

    Args:
        hosts: names and addresses at which devices find the server, beside this machine's own.
        days: that they are valid.
    Raises:
        ValueError: no devices, or no days.
        FileExistsError: there is an authority already; delete the folder to begin anew.
    """
    if devices < 1 or days < 1:
        raise ValueError(f"{devices} devices and {days} days: both must be at least 1")
    folder = Path(folder)
    if (folder / "authority.pem").exists():
        raise FileExistsError(f"{folder} has an authority: delete it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    key = _new_key()
    authority = _certificate("alkit lab", key, "alkit lab", key, days)
    written = _write(folder, "authority", authority, key)
    for name in ("server", *(f"device-{at}" for at in range(devices))):
        own = _new_key()
        common = NAME if name == "server" else name
        names = [common, *dict.fromkeys([*LOCAL, *hosts])] if name == "server" else [common]
        made = _certificate(common, own, "alkit lab", key, days, names)
        written += _write(folder, name, made, own)
    return written


def certificates_in(folder: str | Path, who: str) -> Certificates:
    """Return the paths for "server" or "device-N".

    Raises:
        FileNotFoundError: one of them is missing.
        ValueError: one is broken or out of date, or they don't belong together.
    """
    folder = Path(folder)
    found = Certificates(folder / "authority.pem", folder / f"{who}.pem", folder / f"{who}.key")
    for path in (found.authority, found.certificate, found.key):
        if not path.exists():
            raise FileNotFoundError(f"{path} is missing: alkit split certs makes it")
    _check(found, NAME if who == "server" else who)
    return found


def _check(found: Certificates, name: str) -> None:
    """See that the other side has no reason to refuse these files.

    Raises:
        ValueError: it has; says which file, and why.
    """
    authority = _loaded(found.authority, x509.load_pem_x509_certificate)
    own = _loaded(found.certificate, x509.load_pem_x509_certificate)
    key = _loaded(found.key, lambda pem: serialization.load_pem_private_key(pem, None))
    now = datetime.datetime.now(datetime.UTC)
    for path, each in ((found.authority, authority), (found.certificate, own)):
        first, last = each.not_valid_before_utc, each.not_valid_after_utc
        if not first <= now <= last:
            said = f"{path} is valid from {first} to {last}, and this machine's clock says {now}"
            raise ValueError(f"{said}: set it, or make new ones")
    if key.public_key() != own.public_key():
        raise ValueError(f"{found.key} is not the key of {found.certificate}: copy both anew")
    try:
        own.verify_directly_issued_by(authority)
    except (InvalidSignature, TypeError, ValueError) as error:
        said = f"{found.certificate} is of another authority than {found.authority}"
        raise ValueError(f"{said}: copy both from one folder of `alkit split certs`") from error
    if own.subject != _named(name):
        raise ValueError(f"{found.certificate} is for {own.subject.rfc4514_string()}, not {name}")


def _loaded(path: Path, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(path.read_bytes())
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} can't be read as PEM: copy it again, or make anew") from error


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    names: Sequence[str] = (),
) -> x509.Certificate:
    """Sign a certificate; without names it is an authority's own."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    )
    if names:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        known = [_general_name(each) for each in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(known), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(
    folder: Path, name: str, made: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> list[Path]:
    certificate, secret = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    handle = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(text)
    return [certificate, secret]
