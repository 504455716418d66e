"""Why a model errs at a position: where its tokens turn away, and where its attention goes."""
