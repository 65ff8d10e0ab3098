# A test aid: makes the guest's rxe_req.c leave finished local operations (REG_MR, LOCAL_INV) alone when it repeats its
# send queue after a packet loss. docs/rocev2.md says why the lab needs it. Applied to a copy by build.sh.
/^	if (wqe->mask & WR_LOCAL_OP_MASK) {$/a\
		if (wqe->state == wqe_state_done) {\
			qp->req.wqe_index = queue_next_index(q, qp->req.wqe_index);\
			goto done;\
		}
