"""Row groups of Parquet files: found, read, decoded and handed out.

| module | its part |
|---|---|
| `loader`, `options`, `items`, `lookup` | what users call: a stream of row groups, or single ones |
| `groups`, `cut` | which row groups there are, and each as a file of its own |
| `arrivals`, `read`, `feed`, `drive` | row groups on their way: handed out, in turn, asked for, waited for |
| `decode`, `spare`, `room` | decoded, in memory that is used again, so much at once |
| `files`, `index`, `columns` | which files there are, what each of them has, and what of it is wanted |
| `footer`, `thrift` | a row group as a file of its own: its footer, and the protocol of footers |
| `arrays` | record batches as numpy arrays |
"""
