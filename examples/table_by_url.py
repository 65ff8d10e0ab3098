"""Add up a column of a CSV file on a share, by its URL: ``python table_by_url.py smbd://alice@nas/data/t.csv COLUMN``.

With pandas it is ``pandas.read_csv(url)[column].sum()``: pandas opens URLs by fsspec, too.
"""

from __future__ import annotations

import csv
import sys

import fsspec

url, column = sys.argv[1:3]
with fsspec.open(url, "r", newline="") as file:
    print(sum(float(row[column]) for row in csv.DictReader(file)))
