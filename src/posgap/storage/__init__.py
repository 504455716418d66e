"""Finds files and folders, here or in S3. A stage reads its inputs by `inputs.sources` and `inputs.on_this_machine`,
holds its place by `outputs.Folder`, and uploads its output by `folders.publish`.

Below these, `cache` keeps downloads, and `client`, `objects` and `transfer` talk to S3. `manifests`, `lineage` and
`verification` say what an output was made from; `versions` finds the newest data. Nothing half-written is taken for
complete.
"""
