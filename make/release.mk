# Packages, images and manifests.

IMAGES ?= cpu mlflow gpu-train gpu-serve

# The two checks have an environment of their own, since nothing else here needs what they need.
package: $(VENV)/.installed-test  ## wheel and source distribution in build/dist/, checked, and the wheel's demo where nothing else is
	rm -rf build/dist build/empty
	$(VENV)/bin/python -m build --quiet --outdir build/dist .
	test -x build/checks/bin/python || $(PYTHON) -m venv build/checks
	build/checks/bin/python -m pip install --disable-pip-version-check --quiet twine check-wheel-contents
	build/checks/bin/twine check --strict build/dist/*
	build/checks/bin/check-wheel-contents build/dist/*.whl
	$(PYTHON) -m venv build/empty
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt torch \
		$(if $(TORCH_INDEX_URL),--extra-index-url $(TORCH_INDEX_URL))
	build/empty/bin/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt \
		"$$(echo build/dist/*.whl)[$(EXTRAS)]"
	cd build/empty && bin/posgap --version && PATH="$$PWD/bin:$$PATH" bin/posgap demo --smoke --out smoke

images:  ## builds the container images, with docker, podman or buildah (IMAGES)
	infra/images/images.sh build $(IMAGES)

images-check:  ## checks their size, user, version and SBOM
	infra/images/images.sh check $(IMAGES)

images-scan:  ## looks for known vulnerabilities in them; needs pip-audit, debsecan and the network
	infra/images/images.sh scan $(IMAGES)

# Needs root, kubectl, and Debian's podman, buildah, runc, catatonit, debootstrap, netavark and iptables.
containers: $(VENV)/.installed-test  ## builds the images cpu and mlflow, and runs them and MLflow's manifests: root, podman, ten minutes
	POSGAP_CONTAINERS=1 TORCH_INDEX_URL=$(TORCH_INDEX_URL) $(VENV)/bin/python -m pytest -m '' tests/infra/test_containers.py

api-server: $(VENV)/.installed-test  ## infra/kubernetes on Kubernetes' own API server: Go 1.26 and kubectl, five minutes of two cores the first time
	POSGAP_API_SERVER=1 $(VENV)/bin/python -m pytest -m '' --durations 5 tests/infra/test_api_server.py

# Needs root, Go 1.26, kubectl, and Debian's containerd, runc, containernetworking-plugins, buildah, debootstrap, iptables,
# ipset and conntrack. With POSGAP_KFP, which infra/ci/README.md explains, also runs of the pipelines on Kubeflow: they
# need mariadb-server, nodejs and chromium.
cluster: $(VENV)/.installed-test  ## the overlay `local` on a node of Kubernetes, with its rules enforced: root, Go, half an hour of two cores
	POSGAP_NODE=1 TORCH_INDEX_URL=$(TORCH_INDEX_URL) $(VENV)/bin/python -m pytest -m '' --durations 5 \
		tests/infra/test_api_server.py tests/infra/test_kubernetes_network.py tests/infra/test_cluster.py \
		tests/infra/test_live_train_job.py tests/infra/test_kubeflow.py

manifests: $(VENV)/.installed-test  ## checks infra/kubernetes and renders it to build/manifests/; needs kubectl
	$(VENV)/bin/python -m pytest --quiet -m '' tests/infra/test_kubernetes.py tests/infra/test_kubernetes_security.py
	mkdir -p build/manifests
	kubectl kustomize infra/kubernetes/overlays/local > build/manifests/local.yaml
	kubectl kustomize infra/kubernetes/overlays/aws > build/manifests/aws.yaml

clean:  ## removes .venv, runs and build
	rm -rf $(VENV) runs build
