"""`page_blocks.py PAGE.md NUMBER…`: the Python blocks of a page with these numbers (1, 2 …), for hidden commands.

The addresses of the page's servers are those of `ALPO_SERVERS`; files of the page's are in the folder here.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

page = Path(sys.argv[1]).read_text("utf-8")
blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
for number in sys.argv[2:]:
    block = re.sub(r"127\.0\.0\.1:\d+(,127\.0\.0\.1:\d+)+", os.environ["ALPO_SERVERS"], blocks[int(number) - 1])
    print(block.replace("/var/lib/", f"{Path.cwd()}/"))
