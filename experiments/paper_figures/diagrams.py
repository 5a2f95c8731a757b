"""Diagrams of the paper: circles are random variables, boxes computations, grey is observed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADIUS = 0.34


class Node(NamedTuple):
    """A variable or a computation, where it stands and how it looks."""

    x: float
    y: float
    text: str
    shape: str = "circle"  # circle, box, or none
    observed: bool = False


class Edge(NamedTuple):
    """An arrow from one node to another."""

    start: str
    end: str
    line: str = "-"
    bend: float = 0.0


def graphical_models(stored: object = None) -> "Figure":
    """Figure 2: the generative model, the renderer and the inference network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.6), dpi=120, layout="constrained")
    axes = figure.subplots(1, 3)
    _draw(axes[0], *_generative(), title="generative model, object n")
    _draw(axes[1], *_renderer(), title="rendering of one frame")
    _draw(axes[2], *_inference(), title="inference network")
    return figure


def recurrent_network(stored: object = None) -> "Figure":
    """Figure 7: the structure of the ED-LSTM."""
    from matplotlib.figure import Figure

    nodes, edges = {}, []
    for place, time in enumerate((r"\tau", r"\tau+1", r"\tau+2")):
        x = 2.0 * place
        nodes[f"s{place}"] = Node(x, 2.2, f"$s_{{{time}}}$", "box")
        nodes[f"own{place}"] = Node(x, 0.9, rf"$\hat v_{{{time}}}$")
        nodes[f"v{place}"] = Node(x, 0.0, f"$v_{{{time}}}$", observed=True)
        edges.append(Edge(f"s{place}", f"own{place}"))
    edges += [Edge("s0", "s1"), Edge("s1", "s2"), Edge("v0", "s1", bend=0.15)]
    edges += [Edge("own1", "s2", "--"), Edge("v1", "s2", "--", bend=0.15)]
    figure = Figure(figsize=(4.6, 3.0), dpi=120, layout="constrained")
    axis = figure.subplots()
    _draw(axis, nodes, edges, title="dashed: true frame in training, own frame in use")
    axis.text(2.2, 1.5, "decoder", fontsize=7)
    axis.text(0.35, 1.25, "encoder", fontsize=7, rotation=48)
    return figure


def _generative() -> tuple[dict[str, Node], list[Edge]]:
    nodes = {"z": Node(-1.3, 2.6, "$z^n$")}
    edges = [Edge("z", "h1")]
    for place, time in enumerate(("1", "2", "T")):
        x = 1.6 * place + (0.8 if time == "T" else 0)
        nodes[f"h{time}"] = Node(x, 2.6, f"$h_{time}^n$")
        nodes[f"a{time}"] = Node(x, 1.4, f"$a_{time}^n$")
        nodes[f"v{time}"] = Node(x, 0.0, f"$v_{time}$", observed=True)
        edges += [Edge(f"h{time}", f"a{time}"), Edge(f"a{time}", f"v{time}")]
    nodes["dots"] = Node(2.8, 2.6, r"$\cdots$", "none")
    return nodes, [*edges, Edge("h1", "h2"), Edge("h2", "dots"), Edge("dots", "hT")]


def _renderer() -> tuple[dict[str, Node], list[Edge]]:
    nodes = {"x0": Node(-1.4, 1.2, "$x^0$", "box"), "v": Node(4.6, 0.0, "$v_t$", observed=True)}
    edges: list[Edge] = []
    for n in (1, 2, 3):
        x = 1.5 * (n - 1) + 0.1
        nodes[f"a{n}"] = Node(x, 2.6, f"$a_t^{n}$")
        nodes[f"x{n}"] = Node(x, 1.2, f"$x^{n}$", "box")
        edges += [Edge(f"a{n}", f"x{n}"), Edge(f"x{n - 1}", f"x{n}")]
    nodes["p"] = Node(4.6, 1.2, r"$\sigma$", "box")
    return nodes, [*edges, Edge("x3", "p"), Edge("p", "v")]


def _inference() -> tuple[dict[str, Node], list[Edge]]:
    nodes, edges = {}, []
    for t in (1, 2, 3):
        x = 1.7 * (t - 1)
        nodes[f"v{t}"] = Node(x, 0.0, f"$v_{t}$", observed=True)
        for n in (1, 2):
            y = 1.3 * n
            nodes[f"s{n}{t}"] = Node(x, y, f"$s_{t}^{n}$", "box")
            nodes[f"a{n}{t}"] = Node(x + 0.85, y + 0.62, f"$a_{t}^{n}$")
            edges.append(Edge(f"s{n}{t}", f"a{n}{t}"))
            if n > 1:
                edges.append(Edge(f"s{n - 1}{t}", f"s{n}{t}"))
            edges.append(Edge(f"v{t}", f"s{n}{t}", bend=-0.45 if n > 1 else 0.0))
            if t > 1:
                edges.append(Edge(f"s{n}{t - 1}", f"s{n}{t}"))
    return nodes, edges


def _draw(axis: Any, nodes: Mapping[str, Node], edges: list[Edge], title: str) -> None:
    from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

    shapes: dict[str, Any] = {}
    for name, node in nodes.items():
        look = dict[str, Any](facecolor="#cccccc" if node.observed else "#ffffff", lw=1)
        look["edgecolor"] = "none" if node.shape == "none" else "#000000"
        corner = (node.x - RADIUS, node.y - RADIUS)
        shapes[name] = (
            Rectangle(corner, 2 * RADIUS, 2 * RADIUS, **look)
            if node.shape == "box"
            else Circle((node.x, node.y), RADIUS, **look)
        )
        axis.add_patch(shapes[name])
        axis.text(node.x, node.y, node.text, ha="center", va="center", fontsize=9)
    for start, end, line, bend in edges:
        ends = ((nodes[start].x, nodes[start].y), (nodes[end].x, nodes[end].y))
        style: dict[str, Any] = dict(linestyle=line, color="#333333", lw=1, arrowstyle="-|>")
        style |= dict(mutation_scale=9, patchA=shapes[start], patchB=shapes[end], shrinkB=1)
        axis.add_patch(FancyArrowPatch(*ends, connectionstyle=f"arc3,rad={bend}", **style))
    across = [node.x for node in nodes.values()]
    upwards = [node.y for node in nodes.values()]
    axis.set(
        xlim=(min(across) - 0.6, max(across) + 0.6), ylim=(min(upwards) - 0.6, max(upwards) + 0.6)
    )
    axis.set_aspect("equal")
    axis.set_title(title, fontsize=9)
    axis.axis("off")
