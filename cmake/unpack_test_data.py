"""Copies a folder of test data, its .gz files unpacked: unpack_test_data.py FROM TO."""

import gzip
import shutil
import sys
from pathlib import Path


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    for path in sorted(p for p in source.rglob("*") if p.is_file()):
        out = target / path.relative_to(source)
        out.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            out.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        else:
            shutil.copyfile(path, out)


if __name__ == "__main__":
    main()
