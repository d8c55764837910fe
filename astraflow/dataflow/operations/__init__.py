"""Operations of nodes, trainers and evaluations on a run, and the gRPC servicers that call them."""
