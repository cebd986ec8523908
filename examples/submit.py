"""`insync` for spark-submit: the same commands, on the session and the master that it provides.

    spark-submit --master spark://HOST:7077 examples/submit.py \
        pipeline what-if --source DIR --out OUT
"""

import sys

from insync.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
