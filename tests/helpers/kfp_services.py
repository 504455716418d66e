"""What KFP's driver and launcher call besides Kubernetes and S3: ML Metadata, by its own C++ store, and the cache.

Run by an interpreter that has PyPI's `ml-metadata`, as `kfp_services.py HOST:PORT DATABASE`.
KFP speaks gRPC to both: 49 of the 52 methods of ML Metadata's service are in the package's store, which are all that
KFP calls; of KFP's own service of tasks the two are here that find a fingerprint's execution, and keep it.
"""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from ml_metadata.metadata_store.pywrap.metadata_store_extension import metadata_store as store_methods
from ml_metadata.proto import metadata_store_pb2, metadata_store_service_pb2

METADATA = metadata_store_service_pb2.DESCRIPTOR.services_by_name["MetadataStoreService"]
STATUS = {code.value[0]: code for code in grpc.StatusCode}


def serve_metadata(file: str) -> grpc.GenericRpcHandler:
    config = metadata_store_pb2.ConnectionConfig()
    config.sqlite.filename_uri = file
    config.sqlite.connection_mode = metadata_store_pb2.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    options = metadata_store_pb2.MigrationOptions()
    store = store_methods.CreateMetadataStore(config.SerializeToString(), options.SerializeToString())
    lock = threading.Lock()  # SQLite's connection is one

    def handler(method) -> grpc.RpcMethodHandler:
        work = getattr(store_methods, method.name, None)
        answer = getattr(metadata_store_service_pb2, method.output_type.name)

        def call(request: bytes, context: grpc.ServicerContext):
            if work is None:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, method.name)
            with lock:
                output, message, code = work(store, request)
            if code:
                context.abort(STATUS[code], message.decode() if isinstance(message, bytes) else str(message))
            return answer.FromString(output)

        return grpc.unary_unary_rpc_method_handler(call, response_serializer=answer.SerializeToString)

    return grpc.method_handlers_generic_handler(
        METADATA.full_name, {method.name: handler(method) for method in METADATA.methods}
    )


def serve_cache() -> grpc.GenericRpcHandler:
    """KFP's `api.TaskService` (backend/api/v1beta1/task.proto), of whose messages only the fields used are here."""
    request, created, found, task = _messages()
    kept = []

    def create(asked, context):
        kept.append(asked.task)
        return asked.task

    def find(asked, context):
        wanted = {each["key"]: each["stringValue"] for each in json.loads(asked.filter)["predicates"]}
        same = [one for one in kept if all(getattr(one, key) == value for key, value in wanted.items())]
        return found(tasks=same[-1:])

    methods = {
        "CreateTaskV1": grpc.unary_unary_rpc_method_handler(create, created.FromString, task.SerializeToString),
        "ListTasksV1": grpc.unary_unary_rpc_method_handler(find, request.FromString, found.SerializeToString),
    }
    return grpc.method_handlers_generic_handler("api.TaskService", methods)


def _messages() -> list[type]:
    file = descriptor_pb2.FileDescriptorProto(name="task.proto", package="api", syntax="proto3")
    fields = {
        "ListTasksRequest": [("filter", 5, "")],
        "CreateTaskRequest": [("task", 1, ".api.Task")],
        "ListTasksResponse": [("tasks", 1, ".api.Task")],
        "Task": [("namespace", 2, ""), ("pipelineName", 3, ""), ("mlmdExecutionID", 5, ""), ("fingerprint", 8, "")],
    }
    kind = descriptor_pb2.FieldDescriptorProto
    for name, members in fields.items():
        message = file.message_type.add(name=name)
        for member, number, of in members:
            several = member == "tasks"
            message.field.add(
                name=member,
                number=number,
                type=kind.TYPE_MESSAGE if of else kind.TYPE_STRING,
                type_name=of or None,
                label=kind.LABEL_REPEATED if several else kind.LABEL_OPTIONAL,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"api.{name}")) for name in fields]


if __name__ == "__main__":
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers([serve_metadata(sys.argv[2]), serve_cache()])
    server.add_insecure_port(sys.argv[1])
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()
