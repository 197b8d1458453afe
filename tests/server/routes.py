from starlette.applications import Starlette
app = Starlette()
