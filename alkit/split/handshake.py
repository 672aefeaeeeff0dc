"""Why no stream comes about with a server that is there: a handshake by hand says what fails."""

import socket
import ssl

from alkit.split.channel import HandshakeFailed

__all__ = ["diagnose"]

PATIENCE_S = 2.0


def diagnose(address: str, files: tuple[str, str, str] | None) -> None:
    """Return if nobody answers, or if nothing is wrong.

    Args:
        address: host and port.
        files: PEM files of authority, certificate and key; None for a plain stream.
    Raises:
        HandshakeFailed: somebody answers, and one side does not believe the other.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), PATIENCE_S) as link:
            _shake(link, host, address, files)
    except ssl.SSLCertVerificationError as error:
        raise HandshakeFailed(
            f"the certificate of the server at {address} can't be believed: {error.verify_message};"
            " it must come from the same `alkit split certs` as the files here"
        ) from error
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER" and files:
            raise HandshakeFailed(
                f"the server at {address} does not speak TLS: it is another one, or runs with"
                " plain = true"
            ) from error
    except HandshakeFailed:
        raise
    except OSError:
        return


def _shake(
    link: socket.socket, host: str, address: str, files: tuple[str, str, str] | None
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # below, with the names that there are
    context.set_alpn_protocols(["h2"])
    if files is None:
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(files[0])
        context.load_cert_chain(*files[1:])
    with context.wrap_socket(link, server_hostname=host) as tls:
        shown = tls.getpeercert()
        if files is None or shown is None:
            raise HandshakeFailed(
                f"the server at {address} wants certificates: give the folder, without plain = true"
            )
        names = [name for _, name in shown.get("subjectAltName", ())]
        if host not in names:
            raise HandshakeFailed(
                f"the certificate shown at {address} is for {', '.join(names)}: whoever answers is"
                f" not the server, or it needs one of `alkit split certs --hosts {host}`"
            )
        if not tls.recv(1):  # a server speaks first, if it believes our certificate
            raise HandshakeFailed(
                f"the server at {address} does not accept {files[1]}: it must come from the same"
                " `alkit split certs` as the server's"
            )
