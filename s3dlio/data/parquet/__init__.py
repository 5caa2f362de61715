"""Row groups of Parquet files: found, read, decoded and handed out.

| module | its part |
|---|---|
| `loader`, `lookup` | what users call: a stream of row groups, or single ones |
| `arrivals`, `read`, `decode`, `room` | row groups on their way: handed out, fetched, decoded, in how much memory |
| `index`, `columns` | what a file has, and what of it is wanted |
| `footer`, `thrift` | a row group as a file of its own: its footer, and the protocol of footers |
| `arrays` | record batches as numpy arrays |
"""
