"""What a checkpoint is: bytes and names, no framework.

Three kinds, each with one commit: an object whose single atomic put makes the checkpoint exist, and whose deletion ends it.

| kind | what it is | its commit |
|---|---|---|
| single | one object that `torch.save` or safetensors can have written | the object itself |
| distributed | a directory of shards, one per rank | its manifest, `s3dlio-manifest.json` |
| dcp, huggingface | a directory of torch.distributed.checkpoint | `.metadata`, `model.safetensors.index.json` |
"""
