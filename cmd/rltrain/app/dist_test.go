//go:build dist

package app

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
)

// killedRanks is how many times a rank is killed.
const killedRanks = 20

// distSteps is the number of steps of a run in this file.
const distSteps = 20

// TestDistRanks compares 2 and 4 processes with one, for twenty steps of rollouts.
func TestDistRanks(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{
		"sft", "grpo", "grpo ahead", "ppo", "dpo of own samples", "rloo", "replay", "reinforce", "dpo", "kto", "reward model", "sft of labels", "ppo of labels", "dqn of labels",
	} {
		t.Run(name, func(t *testing.T) {
			r, out := recipes[name], t.TempDir()
			r.args = strings.Replace(r.args, "--num-steps 8", fmt.Sprint("--num-steps ", distSteps), 1)
			one := filepath.Join(out, "one")
			l.finish(t, r, one)
			for _, size := range []int{2, 4} {
				several := filepath.Join(out, fmt.Sprint(size))
				l.startRanks(t, r, several, size, always()).finish(t)
				sameRun(t, r, one, several)
			}
		})
	}
}

// TestDistKills kills a random rank at random moments and resumes with other numbers of ranks; the run must end like
// one that was never stopped.
func TestDistKills(t *testing.T) {
	l, rng := newLab(t), rand.New(rand.NewPCG(1, 2))
	for _, name := range []string{"sft", "grpo", "grpo ahead"} {
		t.Run(name, func(t *testing.T) {
			r, out := recipes[name], t.TempDir()
			one, several := filepath.Join(out, "one"), filepath.Join(out, "several")
			took := l.finish(t, r, one)
			for range killedRanks / 2 {
				size := 2 + rng.IntN(3)
				all := l.startRanks(t, r, several, size, always("--dist-timeout", "10", "--resume=auto"))
				timer := time.NewTimer(time.Duration(rng.Int64N(int64(2 * took))))
				<-timer.C
				_ = all.processes[rng.IntN(size)].Kill() // it may have finished
				began := time.Now()
				all.wait()
				spent := time.Since(began)
				expect.True(t, spent <= time.Minute, "the others ended after %v", spent)
			}
			l.startRanks(t, r, several, 3, always("--resume=auto")).finish(t)
			sameRun(t, r, one, several)
		})
	}
}
