"""Archives that are made."""

import io
import tarfile
import zipfile
from pathlib import Path


def packed(path: Path, files: dict[str, bytes], inside: str = "") -> Path:
    """Write a zip, or a tar, of files in a folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(inside + name, content)
        return path
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(inside + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
