package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/cmd/rltrain/train"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

func rescoreCommand() *cli.Command {
	return &cli.Command{
		Name:      "rescore",
		Aliases:   []string{"replay"},
		Usage:     "recompute rewards and advantages of saved completions",
		ArgsUsage: "FILE",
		Description: `FILE is logs/completions.jsonl of an RL run. rltrain scores its completions with the run's task and rewards, or with
--reward, and compares old and new rewards. It loads no model except a judge.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "settings of the run", DefaultText: "config.yaml in the run folder"},
			&cli.StringFlag{Name: "reward", Usage: "other rewards, as for train"},
			&cli.StringFlag{Name: "output", Usage: "JSON Lines file for the completions with their new rewards and advantages"},
		},
		Action: rescore,
	}
}

func rescore(c *cli.Context) error {
	path := c.Args().First()
	kept, err := readRecords(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(filepath.Dir(path))
	if abs, err := filepath.Abs(path); err == nil {
		dir = filepath.Dir(filepath.Dir(abs))
	}
	settings := c.String("config")
	if settings == "" {
		settings = filepath.Join(dir, "config.yaml")
	}
	args := []string{"--config", settings}
	if c.IsSet("reward") {
		args = append(args, "--reward="+c.String("reward"))
	}
	loaded, err := config.Load(args, nil)
	if err != nil {
		return err
	}
	client, done := shared.HubOf(c)
	defer done()
	console := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now)
	var again []rl.Record
	work := func(ctx context.Context) (err error) {
		again, err = train.Replay(ctx, loaded, dir, kept, client, console)
		return err
	}
	if loaded.Judge != nil && loaded.Judge.Model != "" {
		err = shared.OnThread(c, work)
	} else {
		err = work(c.Context)
	}
	if err != nil {
		return err
	}
	if err := console.Print(rescoreTable(kept, again, c.IsSet("reward"), train.WhyOther(loaded))); err != nil {
		return err
	}
	return saveRows(c.String("output"), again)
}

// same compares numbers within float32 rounding; NaN equals NaN.
func same(a, b rl.Number) bool {
	x, y := float64(a), float64(b)
	return x == y || math.IsNaN(x) && math.IsNaN(y) || math.Abs(x-y) <= 1e-5*max(1, math.Abs(x), math.Abs(y))
}

// rescoreTable compares old and new rewards and advantages by step.
func rescoreTable(kept, again []rl.Record, other bool, why string) string {
	type sums struct{ n, scored, rewards, advantages, trained int }
	var all, step sums
	var rows [][]string
	var before, after float64
	flush := func(number int) {
		mean := func(sum float64) string { return strconv.FormatFloat(sum/float64(max(1, step.scored)), 'g', 4, 64) }
		rows = append(rows, []string{strconv.Itoa(number), strconv.Itoa(step.n), mean(before), mean(after),
			fmt.Sprintf("%d of %d", step.rewards, step.n), fmt.Sprintf("%d of %d", step.advantages, step.trained)})
		all.n, all.rewards, all.advantages, all.trained = all.n+step.n, all.rewards+step.rewards, all.advantages+step.advantages, all.trained+step.trained
		step, before, after = sums{}, 0, 0
	}
	for i, r := range kept {
		if i > 0 && kept[i-1].Step != r.Step {
			flush(kept[i-1].Step)
		}
		step.n++
		if same(r.Reward, again[i].Reward) {
			step.rewards++
		}
		if !math.IsNaN(float64(r.Advantage)) {
			step.trained++
			if same(r.Advantage, again[i].Advantage) {
				step.advantages++
			}
		}
		if x, y := float64(r.Reward), float64(again[i].Reward); !math.IsNaN(x) && !math.IsNaN(y) {
			step.scored++
			before, after = before+x, after+y
		}
	}
	if len(kept) > 0 {
		flush(kept[len(kept)-1].Step)
	}
	text := report.RenderTable([]string{"step", "completions", "old reward", "new reward", "equal rewards", "equal advantages"}, rows)
	text += fmt.Sprintf("%s: %d rewards and %d of %d advantages are unchanged\n", report.Plural(all.n, "completion"), all.rewards, all.advantages, all.trained)
	if why != "" && !other && all.advantages < all.trained {
		text += "note: " + why + "\n"
	}
	return text
}

// readRecords reads completions.jsonl. It skips an incomplete last line.
func readRecords(path string) ([]rl.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []rl.Record
	lines := bufio.NewReader(f)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		var r rl.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		if r.Step < 1 || r.Prompt < 0 {
			return nil, fmt.Errorf("%s:%d: no step or prompt; pass logs/completions.jsonl of an RL run", path, number)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no completions", path)
	}
	return all, nil
}
