"""An API server with the overlay `local`: alone, or of a whole node."""

import os

import pytest


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    import api_server
    import cluster

    if cluster.ON_A_NODE:
        with cluster.with_overlay() as running:
            yield running
    elif os.environ.get("POSGAP_API_SERVER") == "1":
        with api_server.running(tmp_path_factory.mktemp("api")) as running:
            # All but what needs a node.
            running.apply_local("kubectl label", "kubectl taint", "kubectl -n posgap rollout", "kubectl -n posgap exec")
            yield running
    else:
        pytest.skip("it is compiled first, for some minutes: make api-server, or make cluster")


@pytest.fixture(scope="session")
def node(request):
    if os.environ.get("POSGAP_NODE") != "1":
        pytest.skip("a node is made for it, as root: make cluster")
    return request.getfixturevalue("server")


@pytest.fixture(scope="session")
def kubeflow(request):
    import kubeflow_node

    with kubeflow_node.running(request.getfixturevalue("node")) as running:
        yield running
