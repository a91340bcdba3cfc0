"""A letter's record in the user's editor."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redrive.cli.exit_codes import CommandRefused, Unwritten

if TYPE_CHECKING:
    from redrive.model.letters import Letter


def edited_by_hand(letter: Letter) -> Any:
    """What the user made of the record; it is shown complete, since what is masked could not be kept."""
    from redrive.store.encoding import decode, encode

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    # Only its owner may read it.
    descriptor, path = tempfile.mkstemp(prefix=f"letter-{letter.id}-", suffix=".json")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(json.loads(encode(letter.payload)), file, ensure_ascii=False, indent=2)
            file.write("\n")
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise Unwritten(Path(path), error, is_left=True) from None
        raise
    kept = False
    try:
        ended = subprocess.run([*shlex.split(editor), path], check=False)
        if ended.returncode:
            raise CommandRefused(f"{editor} exited with status {ended.returncode}. Nothing was changed")
        with open(path, encoding="utf-8") as file:
            return decode(file.read(), typed=True)
    except OSError as error:
        raise CommandRefused(f"cannot run {editor}: {error.strerror}; Set EDITOR. Nothing was changed") from None
    except ValueError as error:
        kept = True
        raise CommandRefused(
            f"the edited record is not JSON: {error}. It is kept in {path}. Nothing was changed"
        ) from None
    finally:
        if not kept:
            os.unlink(path)
