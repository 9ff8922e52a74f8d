from .nodes import Node
from .unparse import unparse
def canonical(node: Node) -> str: return unparse(node)
