"""Makes the files in this folder, with pyarrow 26.0.1 and pandas 3.1.1: `python3 make.py`."""

from pathlib import Path

import pandas
import pyarrow
from pyarrow import feather, ipc

HERE = Path(__file__).parent
# The missing label makes the column one of floating-point numbers.
frame = pandas.DataFrame({"text": ["a fine film", "no label", "grüße"], "label": [1, None, 0], "user": pandas.Categorical(["ann", "ann", "bob"])})
frame.to_parquet(HERE / "pandas.parquet")
frame.to_feather(HERE / "pandas.feather")
table = pyarrow.table({"text": frame["text"].tolist(), "label": pyarrow.array([1, None, 0]), "user": ["ann", "ann", "bob"]})
# The cache files of the `datasets` library are streams.
with ipc.new_stream(HERE / "datasets.arrow", table.schema) as stream:
    stream.write_table(table)
