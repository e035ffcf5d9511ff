package torch

// void rlt_give_back(void);
import "C"

// GiveBack hands memory that is free back to the system. It is for where one kind of work ends and another begins, as
// before and after an evaluation: the blocks of one are of no use to the other, and taking pages anew within training
// would cost time at every step.
func GiveBack() { C.rlt_give_back() }
