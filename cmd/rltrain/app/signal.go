package app

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/doctor"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/train"
)

// Sizes of the measurement of doctor --task.
const (
	signalProblems = "16"
	signalSamples  = "8"
	signalShown    = 3 // completions
)

func doctorCommand() *cli.Command {
	flags := joinFlags(languageModelFlags(), problemFlags(), config.ProblemFlags())[1:] // without --model
	return doctor.Command(doctor.Signal{Flags: flags, Tasks: problemTasks(), Describe: describeSignal})
}

// describeSignal measures what RL on a task can learn from at the start: it samples completions and shows pass@1, pass@n
// and how many problems have correct and incorrect samples.
func describeSignal(c *cli.Context, s *shared.Sheet) error {
	for name, value := range map[string]string{"n": signalSamples, "eval-samples": signalProblems} {
		if !c.IsSet(name) {
			if err := c.Set(name, value); err != nil {
				return err
			}
		}
	}
	x, err := newProblemEval(c)
	if err != nil {
		return err
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		results, err := x.measure(ctx, c, c.String("model"), c.String("adapter"))
		if err != nil {
			return err
		}
		for _, set := range results.Sets {
			s.Head("Signal for RL on %s (%d problems, %d samples each, temperature %g)", x.task, set.Problems, set.N, results.Temperature)
			set.describeSignal(s)
		}
		return nil
	})
}

func (set problemSet) describeSignal(s *shared.Sheet) {
	percent := func(name string, f rl.Estimate) {
		s.Row(name, "%.1f %% (95 %% CI %.1f–%.1f)", 100*f.Value, 100*f.Interval[0], 100*f.Interval[1])
	}
	percent("pass@1", set.Pass[0])
	percent(fmt.Sprintf("pass@%d", set.N), set.Pass[set.N-1])
	cut, all, mixed := 0, 0, 0
	for _, row := range set.Rows {
		for _, one := range row.Samples {
			if all++; one.Stop == envs.StopLength {
				cut++
			}
		}
		if row.Correct > 0 && row.Correct < len(row.Samples) {
			mixed++
		}
	}
	s.Row("truncated", "%.1f %% of the completions", 100*float64(cut)/float64(max(1, all)))
	s.Row("to learn", "%d of %d problems have correct and incorrect samples; the others teach nothing", mixed, len(set.Rows))
	for i := range min(signalShown, len(set.Rows)) {
		row := set.Rows[i*len(set.Rows)/signalShown]
		s.Row(fmt.Sprintf("sample of %d", row.Index), "%.120q, correct answer %.40q", row.Samples[0].Text, row.Truth)
	}
	const enough = 4 // a quarter of the problems
	switch {
	case mixed*enough >= len(set.Rows):
		s.Row("verdict", "RL can start here")
	case set.Pass[0].Value > 0.5:
		s.Row("what helps", "%s", "use harder prompts or a stricter reward")
	default:
		s.Row("what helps", "%s", train.SignalHelp)
	}
}
