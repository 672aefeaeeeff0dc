"""Certificates, and why no stream comes about with a server that is there."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alkit.split.channel import HandshakeFailed

__all__ = ["NAME", "Certificates", "diagnose"]

PATIENCE_S = 2.0
NAME = "alkit-server"  # in the server's certificate
ANEW = "both must come from one `alkit split certs`"


@dataclass(frozen=True)
class Certificates:
    """Who one is, and who says so: paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return authority, certificate and key."""
        return (
            self.authority.read_bytes(),
            self.certificate.read_bytes(),
            self.key.read_bytes(),
        )


def diagnose(address: str, own: Certificates | None) -> None:
    """Return if nobody answers, or if nothing is wrong in a handshake by hand.

    Args:
        address: host and port.
        own: None for a plain stream.
    Raises:
        HandshakeFailed: somebody answers, and one side does not believe the other.
    """
    host, _, port = address.rpartition(":")
    said = f"the server at {address}"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S) as link:
            why = _fault(link, host.strip("[]"), own)
    except ssl.SSLCertVerificationError as error:
        raise HandshakeFailed(
            f"{said} can't be believed: {error.verify_message}; {ANEW}"
        ) from error
    except OSError as error:  # it is not there, or goes away at the moment
        if own is None or getattr(error, "reason", None) != "WRONG_VERSION_NUMBER":
            return
        why = "does not speak TLS: it is another one, or runs with plain = true"
    if why:
        raise HandshakeFailed(f"{said} {why}")


def _fault(link: socket.socket, host: str, own: Certificates | None) -> str:
    """Return what is wrong after the handshake; nothing if all is well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # below, with the names that there are
    context.set_alpn_protocols(["h2"])
    if own is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(own.authority)
        context.load_cert_chain(own.certificate, own.key)
    with context.wrap_socket(link, server_hostname=host) as tls:
        shown: Any = tls.getpeercert()
        if own is None or shown is None:
            return "wants certificates: give their folder, and leave plain out"
        names = [name for _, name in shown.get("subjectAltName", ())]
        if host not in names:
            whose = f"shows a certificate for {', '.join(names)}: it is not the server"
            return f"{whose}, or needs one of `alkit split certs --hosts {host}`"
        # a server speaks first, if it believes our certificate
        return "" if tls.recv(1) else f"does not accept {own.certificate}: {ANEW}"
