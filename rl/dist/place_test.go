package dist

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestFromEnvironment(t *testing.T) {
	for _, test := range []struct {
		name, environ string
		want          *Place
	}{
		{"alone", "HOME=/root SLURM_JOB_ID=5 SLURM_PROCID=0", nil},
		{"one of one", "RANK=0 WORLD_SIZE=1", nil},
		{"by hand", "RANK=1 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500", &Place{Rank: 1, Size: 4, Host: "10.0.0.1", Port: 29500}},
		{"torchrun", "RANK=1 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n MASTER_PORT=1 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2",
			&Place{Rank: 1, Size: 4, LocalSize: 2, Host: "n", Port: 1, Served: true, Attempt: "2"}},
		{"PyTorchJob", "RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=23456 KUBERNETES_SERVICE_HOST=10.0.0.1",
			&Place{Size: 2, Host: "localhost", Port: 23456, InCluster: true}},
		{"Trainer", "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=1 PET_MASTER_ADDR=a PET_MASTER_PORT=7", &Place{Rank: 1, Size: 2, Host: "a", Port: 7}},
		{"srun", "SLURM_STEP_ID=0 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_STEP_NODELIST=gpu[003-004] SLURM_JOB_ID=40007",
			&Place{Rank: 3, Size: 4, LocalSize: 2, Host: "gpu003", Port: 20007}},
		{"srun with a port", "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 MASTER_ADDR=a MASTER_PORT=7", &Place{Size: 2, Host: "a", Port: 7}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := FromEnvironment(strings.Fields(test.environ))
			diff := cmp.Diff(test.want, got)
			expect.True(t, err == nil && diff == "", "%v, (-want +got):\n%s", err, diff)
		})
	}
}

func TestFromEnvironmentRefuses(t *testing.T) {
	for _, test := range []struct{ environ, want string }{
		{"WORLD_SIZE=2", "WORLD_SIZE is set, but RANK is not"},
		{"RANK=0", "RANK is set, but WORLD_SIZE is not"},
		{"RANK=0 WORLD_SIZE=", "RANK is set, but WORLD_SIZE is not"},
		{"RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "rank 2 is out of range"},
		{"RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", `RANK is "-1"`},
		{"RANK=x WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", `RANK is "x"`},
		{"RANK=0 WORLD_SIZE=0", `WORLD_SIZE is "0"`},
		{"RANK=0 WORLD_SIZE=2 MASTER_PORT=1", "MASTER_ADDR is not"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_PORT is not"},
		{"RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", `MASTER_PORT is "70000"`},
		{"PET_NNODES=2", "PET_NODE_RANK is not"},
		{"PET_NNODES=2 PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 PET_MASTER_ADDR=a PET_MASTER_PORT=1", "torchrun --no-python"},
		{"SLURM_STEP_ID=0 SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS is not"},
		{"SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=gpu[ SLURM_JOB_ID=1", "names no host"},
	} {
		t.Run(test.environ, func(t *testing.T) {
			expect.Failure(FromEnvironment(strings.Fields(test.environ)))(t, test.want)
		})
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"node1": "node1", "a,b": "a", "gpu[003-007,9],login1": "gpu003", "x[1]y": "x1y", "login1,gpu[1-2]": "login1", "": "", "a[b": "", "a[1][2]": "",
	} {
		expect.Same(t, want, firstHost(list), "%q", list)
	}
}
