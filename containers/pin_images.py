"""Asks what the base's tag points to now, and pins that digest: `make pin-images`, where there is a network.

skopeo or docker asks the registry that they are set up for; nothing here names one. An image that is asked for
by an older digest may be gone from its registry: refresh, build, and publish records anew.
"""

import json
import re
import shutil
import subprocess

import recipes
import runtime

_ASKS = {
    "skopeo": ("inspect", "--format", "{{.Digest}}", "docker://{image}"),
    "docker": (
        "buildx",
        "imagetools",
        "inspect",
        "--format",
        "{{json .Manifest.Digest}}",
        "{image}",
    ),
}


def main() -> None:
    base = recipes.base()
    digest = newest(f"{base.image}:{base.tag}")
    if digest == base.digest:
        print(f"{base.image}:{base.tag} still is {digest}")
        return
    path = recipes.CONTAINERS / "base.toml"
    path.write_text(path.read_text().replace(base.digest, digest))
    recipes.main()
    print(f"{base.image}:{base.tag} was {base.digest}, and is {digest} now")


def newest(image: str) -> str:
    """The digest that the tag points to, from the first tool that gets an answer."""
    complaints = []
    for tool, asks in _ASKS.items():
        if shutil.which(tool) is None:
            complaints.append(f"{tool} is not installed")
            continue
        command = [
            tool,
            *(word.format(image=image) if "{image}" in word else word for word in asks),
        ]
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        found = re.fullmatch(r'"?(sha256:[0-9a-f]{64})"?', answer.stdout.strip())
        if answer.returncode == 0 and found:
            return found[1]
        complaints.append(f"{tool}: {(answer.stderr or answer.stdout).strip().splitlines()[-1:]}")
    runtime.stop(f"Nobody could be asked for {image}: {json.dumps(complaints)}")


if __name__ == "__main__":
    main()
