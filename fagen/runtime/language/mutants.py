from .nodes import Node
def mutants(node: Node) -> list[tuple[str, Node]]: return []
