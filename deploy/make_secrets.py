"""Create the secrets of compose.yaml in deploy/secrets; existing files are kept."""

import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"


def made() -> dict[str, str]:
    """Return the secrets by file name; addresses contain the passwords."""
    database, redis = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    return {
        "secret_key": secrets.token_urlsafe(50),
        "postgres_password": database,
        "database_url": f"postgres://trnwatch:{database}@postgres:5432/trnwatch",
        "redis_password": redis,
        "redis_url": f"redis://:{redis}@redis:6379/0",
        # Put the token of `manage.py create_token prometheus --scope scrape` here.
        "scrape_token": "",
    }


def main(folder: Path) -> None:
    """Write missing files; passwords and addresses only together."""
    folder.mkdir(mode=0o700, exist_ok=True)
    there = {path.name for path in folder.iterdir()}
    new = made()
    if there & new.keys() and not new.keys() <= there:
        missing = ", ".join(sorted(new.keys() - there))
        sys.exit(f"{folder} lacks {missing}: put them back, or remove the others to start over.")
    for name, value in new.items():
        if name not in there:
            path = folder / name
            path.touch(mode=0o600)
            path.write_text(value, encoding="utf-8")
            # Containers run as another user; the folder itself is closed to others.
            path.chmod(0o644)
    sys.stdout.write(f"The secrets are in {folder}.\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
