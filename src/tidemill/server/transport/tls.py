"""TLS certificates, checked before anything is loaded."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidemill.base.errors import TidemillError, config_error
from tidemill.base.files import open_regular


class Certificates:
    """The server's certificate, and optionally the authority for client certificates.

    Args:
        cert: PEM file: the certificate, followed by the intermediate ones.
        key: PEM file of its private key, without a password; None: in `cert` as well.
        client_ca: PEM file of authorities; clients must present a certificate issued by one (mTLS).

    Attributes:
        context: for the listening socket. TLS 1.2 at least.

    Raises:
        TidemillError: kind CONFIG, naming the flag.
    """

    def __init__(self, cert: Path, key: Path | None, client_ca: Path | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self.context = self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

    @property
    def paths(self) -> tuple[Path, Path | None, Path | None]:
        """The files of the certificate, its key and the clients' authority."""
        return self._cert, self._key, self._client_ca

    def reload(self) -> None:
        """Reload the server's certificate; new connections use it.

        Raises:
            TidemillError: kind CONFIG; the old certificate stays.
        """
        self._load(
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        )  # validate before changing the context in use
        self.context.load_cert_chain(self._cert, self._key, _no_password)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _check_readable("tls-cert", self._cert)
        if self._key is not None:
            _check_readable("tls-key", self._key)
        try:
            context.load_cert_chain(self._cert, self._key, _no_password)
        except _Encrypted:
            raise config_error(
                "tls-key",
                f"the private key {self._key or self._cert} has a password; store it without one "
                "(`openssl pkey -in KEY -out PLAIN`), readable by this user alone",
            ) from None
        except ssl.SSLError as error:
            raise _explain(error, self._cert, self._key) from error
        if self._client_ca is not None:
            _check_readable("tls-client-ca", self._client_ca)
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise config_error(
                    "tls-client-ca", f"{self._client_ca} holds no PEM certificate"
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Encrypted(Exception):
    pass


def _no_password() -> bytes:
    # Otherwise OpenSSL would prompt on the terminal and block.
    raise _Encrypted


def _check_readable(flag: str, path: Path) -> None:
    try:
        open_regular(path).close()
    except OSError as error:
        raise config_error(flag, f"--{flag} {path} cannot be read: {error.strerror}") from error


def _explain(error: ssl.SSLError, cert: Path, key: Path | None) -> TidemillError:
    reason = error.reason or ""
    if "MISMATCH" in reason:
        return config_error("tls-key", f"{key or cert} is not the private key of {cert}")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cert)
    except ssl.SSLError:
        return config_error("tls-cert", f"{cert} holds no PEM certificate")
    return config_error("tls-key", f"{key or cert} holds no PEM private key ({reason})")
