"""Sparse assignment: the best set of pairs, solved exactly in each connected component."""

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csgraph

from motes.tracking.sprite import Array


def best_pairs(rows: Array, columns: Array, gains: Array, shape: tuple[int, int]) -> Array:
    """Return which edges are in the matching with the largest total gain.

    A row or column may stay alone at gain 0, so edges with gain <= 0 are never chosen. Edges must
    be distinct.

    Law: equals the best of all matchings (test_the_assignment_equals_brute_force).

    Args:
        rows: of each edge, [E].
        columns: of each edge, [E].
        gains: of each edge, [E].
        shape: numbers of rows and columns.
    """
    chosen = np.zeros(len(gains), bool)
    useful = np.flatnonzero(gains > 0)
    if len(useful) == 0:
        return chosen
    i, j = rows[useful], columns[useful]
    alone = (np.bincount(i, minlength=shape[0])[i] == 1) & (
        np.bincount(j, minlength=shape[1])[j] == 1
    )
    chosen[useful[alone]] = True
    useful = useful[~alone]
    if len(useful) == 0:
        return chosen
    i, j, gain = rows[useful], columns[useful], gains[useful]
    size = shape[0] + shape[1]
    graph = sparse.coo_matrix((np.ones(len(i), bool), (i, shape[0] + j)), (size, size))
    labels = csgraph.connected_components(graph, directed=False)[1][i]
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    for part in np.split(order, cuts):
        names_i, a = np.unique(i[part], return_inverse=True)
        names_j, b = np.unique(j[part], return_inverse=True)
        if len(names_i) == 1 or len(names_j) == 1:
            chosen[useful[part[gain[part].argmax()]]] = True
            continue
        cost = np.zeros((len(names_i), len(names_j)))
        cost[a, b] = -gain[part]
        edge = np.full(cost.shape, -1)
        edge[a, b] = part
        picked = edge[linear_sum_assignment(cost)]
        chosen[useful[picked[picked >= 0]]] = True
    return chosen


def swap_losses(
    rows: Array, columns: Array, gains: Array, chosen: Array, shape: tuple[int, int]
) -> Array:
    """Return for each edge that is not chosen what choosing it instead would lose.

    The edge (i, j) takes the place of i's and j's chosen edges; their former partners are paired
    with one another if such an edge exists, else they stay alone. Chosen edges have loss infinity.
    """
    owner = np.full(shape[0], -1)
    owned = np.full(shape[1], -1)
    picked = np.flatnonzero(chosen)
    owner[rows[picked]] = picked
    owned[columns[picked]] = picked
    keys = rows * shape[1] + columns
    order = np.argsort(keys)
    mine, theirs = owner[rows], owned[columns]
    padded = np.append(gains, 0.0)  # index -1: no edge
    other_row = np.where(theirs >= 0, rows[theirs], -1)
    other_column = np.where(mine >= 0, columns[mine], -1)
    cross = np.full(len(gains), 0.0)
    both = (other_row >= 0) & (other_column >= 0)
    wanted = other_row[both] * shape[1] + other_column[both]
    spot = np.searchsorted(keys[order], wanted).clip(0, len(keys) - 1)
    hit = keys[order][spot] == wanted
    cross[both] = np.where(hit, np.maximum(gains[order][spot], 0.0), 0.0)
    loss = padded[mine] + padded[theirs] - gains - cross
    loss[chosen] = np.inf
    return loss
