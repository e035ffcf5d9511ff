package dist

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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

// TestStrangersAreRejected: a client without the token, or with another protocol, is disconnected silently.
func TestStrangersAreRejected(t *testing.T) {
	listener := must.Open(net.Listen("tcp", "127.0.0.1:0"))(t)
	guests := greet(t.Context(), listener, "token")
	knock := func(m *message, text string) *link {
		t.Helper()
		conn, err := net.Dial("tcp", listener.Addr().String())
		must.Do(t, err)
		t.Cleanup(func() { conn.Close() })
		l := newLink(conn, time.Minute)
		if m != nil {
			err = l.send(*m)
		} else {
			_, err = conn.Write([]byte(text))
		}
		must.Do(t, err)
		return l
	}
	for name, l := range map[string]*link{
		"without the token":   knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{}}, ""),
		"with another token":  knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{}, Token: "tokem"}, ""),
		"without what it is":  knock(&message{Kind: hello, Rank: 1, Size: 2, Token: "token"}, ""),
		"of another protocol": knock(nil, "GET / HTTP/1.1\r\n\r\n"),
	} {
		m, err := l.receive(time.Now().Add(time.Minute))
		expect.True(t, err != nil, "a client %s receives %+v", name, m)
	}
	knock(&message{Kind: hello, Rank: 1, Size: 2, Member: &Member{Version: "v"}, Token: "token"}, "")
	g := <-guests
	expect.True(t, g.hello.Member.Version == "v", "%+v was accepted", g.hello)
}

// TestLook: rank 0 names the ranks that hang, and those that are missing in the exchange that the others wait in.
func TestLook(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name         string
		entered      int           // by rank 0
		waiting      time.Duration // of rank 0
		told         [2]message    // by ranks 1 and 2
		gone, silent int           // a rank; 0 = none
		want         string
	}{
		{"all work", 3, 0, [2]message{{Entered: 2}, {Entered: 3}}, 0, 0, ""},
		{"a short wait", 3, 70 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 70}}, 0, 0, ""},
		{"one is missing", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 70}}, 0, 0, "waited for rank 1 for 80.0 s"},
		{"two are missing", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 1}}, 0, 0, "waited for rank 1 and rank 2 for 80.0 s"},
		{"one has finished", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 90}}, 1, 0, "waited for rank 1, which has finished for 90.0 s"},
		{"an earlier exchange does not count", 2, 90 * time.Second, [2]message{{Entered: 3, Waiting: 10}, {Entered: 3, Waiting: 10}}, 0, 0, ""},
		{"all wait", 3, 80 * time.Second, [2]message{{Entered: 3, Waiting: 80}, {Entered: 3, Waiting: 80}}, 0, 0, "the network between the ranks is down"},
		{"one is silent", 3, 0, [2]message{{Entered: 3}, {Entered: 3}}, 0, 2, "rank 2 has not responded for 51.0 s"},
		{"one was silent before it finished", 3, 0, [2]message{{Entered: 3}, {Entered: 3}}, 2, 2, ""},
	} {
		w := newWatch(0, 100*time.Second, map[int]*link{1: nil, 2: nil})
		w.now = func() time.Time { return now }
		if w.entered = c.entered; c.waiting > 0 {
			w.since = now.Add(-c.waiting)
		}
		for i, m := range c.told {
			w.told[i+1], w.heard[i+1] = m, now
		}
		w.gone[c.gone], w.heard[c.silent] = true, now.Add(-51*time.Second)
		delete(w.heard, 0)
		for range 20 { // ranks come in any order
			got := w.look()
			expect.Require(t, (got == "") == (c.want == "") && strings.Contains(got, c.want), "%s: %q, want %q", c.name, got, c.want)
		}
	}
}
