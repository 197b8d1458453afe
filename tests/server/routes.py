"""A route to what servers with a database do when a thread's time is up, or the SDK asks to prune.

The in-memory server refuses `strategy="keep_latest"` before it asks the checkpointer. Larger servers reach the same
Python process by gRPC; the route calls the function that answers them, so strategies have the names they use.
"""

from typing import Any

from langgraph_api.grpc.servicers.checkpointer import CheckpointerServicerImpl
from langgraph_grpc_common.proto.checkpointer_pb2 import PruneRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class Context:
    """The little that the function asks of a gRPC call, and only after an error."""

    def code(self) -> Any:
        return "the error itself is raised"


async def prune(request: Request) -> JSONResponse:
    asked = await request.json()
    strategy = PruneRequest.PruneStrategy.Value(asked["strategy"])
    await CheckpointerServicerImpl().Prune(PruneRequest(thread_ids=asked["thread_ids"], strategy=strategy), Context())
    return JSONResponse({"pruned": asked["thread_ids"]})


app = Starlette(routes=[Route("/prune", prune, methods=["POST"])])
