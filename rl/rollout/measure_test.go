package rollout

import (
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestOutcomesAreTheLastTurns: the echo alarm sees the last turn and all that came before it, and nothing of samples
// without a reward.
func TestOutcomesAreTheLastTurns(t *testing.T) {
	p := sampler(t, tiny(t), 8).Policy()
	trajectory := func(prompt int, rewards []float64, turns ...string) *rl.Trajectory {
		x := &rl.Trajectory{Prompt: prompt, Info: &envs.Info{Answer: "70", Truth: "4"}}
		for i, text := range turns {
			ids, _, err := p.Tokenizer.Encode(text, 99)
			must.Do(t, err)
			for _, id := range ids {
				if i%2 == 0 {
					x.AppendGiven(id)
				} else {
					x.AppendSampled(id, 0, 0)
				}
			}
			if i%2 == 1 {
				x.EndTurn(rewards[i/2])
			}
		}
		return x
	}
	got := must.Get(outcomes(p, []*rl.Trajectory{
		trajectory(1, []float64{1}, "74 - 70?", "74"), trajectory(1, []float64{math.NaN()}, "74 - 70?", "75"), trajectory(1, []float64{0}, "74 - 70?", "70"),
		trajectory(2, []float64{0, 2}, "Go!", "a", "And?", "b"),
	}))(t)
	want := []rl.Outcome{
		{Prompt: "74 - 70?", Text: "74", Answer: "70", Truth: "4", Reward: 1}, {Prompt: "74 - 70?", Text: "70", Answer: "70", Truth: "4"},
		{Prompt: "Go!aAnd?", Text: "b", Answer: "70", Truth: "4", Reward: 2},
	}
	expect.Equal(t, want, got)
	// Rewards of two values are verdicts, and others are not.
	for _, test := range []struct {
		rewards []float64
		want    int
	}{{[]float64{0, 1, 1}, 2}, {[]float64{-1, -0.5, -1}, 1}, {[]float64{1, 1}, 2}, {[]float64{0, 0}, 0}, {[]float64{0, 0.5, 1}, -1}, {[]float64{math.NaN(), 1, 0}, 1}} {
		var played Played
		for _, reward := range test.rewards {
			played.Groups = append(played.Groups, rl.Group{trajectory(1, []float64{reward}, "a", "b")})
		}
		if got := accepted(played); got != test.want {
			t.Errorf("rewards %v: %d accepted, want %d", test.rewards, got, test.want)
		}
	}
}

func TestSyncLine(t *testing.T) {
	line := syncLine([]*envs.Info{{Correct: true, FormatOK: true}, {FormatOK: true}, {}}, "")(rl.Meter{})
	want := "1/3 correct 2/3 formatted "
	expect.True(t, strings.Contains(line, want), "%q lacks %q", line, want)
}
