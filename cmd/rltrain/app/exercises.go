package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/torch"
)

// exerciseTasks are the tasks that language models are judged by.
func exerciseTasks() []string {
	return tasksWhere(func(d envs.Definition) bool { return d.Plays() && !d.Labels() })
}

// exerciseFlags say how a language model answers the exercises of a task. Names that a command has already are left out.
func exerciseFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.IntFlag{Name: "n", Value: 1, Usage: "tries of a language model at each exercise"},
		&cli.Float64Flag{Name: "temperature", Usage: "of the tries; 0 takes the likeliest token", DefaultText: "0 for one try, 1 for several"},
		&cli.Float64Flag{Name: "top-p", Usage: "draw from the fewest likeliest tokens with this much of the mass; 0 = all"},
		&cli.StringFlag{Name: "seed", Usage: "of the tries, and of exercises that are made up", DefaultText: "42"},
	}, config.ProblemFlags("dataset", "eval_dataset", "answer_match")...)
}

// joinFlags joins lists of flags; of those with the same name the first counts.
func joinFlags(lists ...[]cli.Flag) []cli.Flag {
	var all []cli.Flag
	seen := map[string]bool{}
	for _, flag := range slices.Concat(lists...) {
		if name := flag.Names()[0]; !seen[name] {
			seen[name] = true
			all = append(all, flag)
		}
	}
	return all
}

// flagNames are the names of flags.
func flagNames(flags []cli.Flag) []string {
	var names []string
	for _, flag := range flags {
		names = append(names, flag.Names()[0])
	}
	return names
}

// onlyFlags refuses the flags given that are not among names.
func onlyFlags(c *cli.Context, task string, names []string) error {
	for _, name := range c.FlagNames() {
		if c.IsSet(name) && !slices.Contains(names, name) {
			return shared.UsageErrorf("--%s: does not apply to task %s", name, task)
		}
	}
	return nil
}

// exam is how language models are judged: the tries at the exercises of one or several data sets.
type exam struct {
	task     string
	datasets []string // "" for exercises that are made up
	tries    int
	sampling torch.Sampling
	settings []string // of the task, as arguments of a training run
}

// newExam reads the flags.
func newExam(c *cli.Context) (exam, error) {
	x := exam{task: c.String("task"), tries: c.Int("n"), datasets: []string{c.String("dataset")}}
	flags, err := languageModelFlags()
	if err != nil {
		return x, err
	}
	of := append(config.ProblemFlags("dataset", "eval_dataset"), &cli.StringFlag{Name: "seed"})
	names := append(flagNames(joinFlags(flags, exerciseFlags(), of)), "task", "dataset", "output")
	if err := onlyFlags(c, x.task, names); err != nil {
		return x, err
	}
	for _, name := range flagNames(of) {
		if c.IsSet(name) {
			x.settings = append(x.settings, fmt.Sprintf("--%s=%v", name, c.Value(name)))
		}
	}
	if name := x.datasets[0]; strings.Contains(name, ",") {
		if _, err := os.Stat(name); err != nil { // else the comma is the file's own
			x.datasets = strings.Split(name, ",")
		}
	}
	x.sampling = torch.Sampling{Temperature: c.Float64("temperature"), TopP: c.Float64("top-p")}
	if x.tries > 1 && !c.IsSet("temperature") {
		x.sampling.Temperature = 1
	}
	return x, checkTries(x.tries, x.sampling)
}

// checkTries refuses what no answers can be drawn by.
func checkTries(tries int, sampling torch.Sampling) error {
	switch {
	case tries < 1 || tries > 1<<16:
		return shared.UsageErrorf("--n: %d is out of range; it must be 1 to 65536", tries)
	case !(sampling.Temperature >= 0 && sampling.Temperature <= 1e6):
		return shared.UsageErrorf("--temperature: %v is out of range; it must be 0 to 1000000", sampling.Temperature)
	case !(sampling.TopP >= 0 && sampling.TopP <= 1):
		return shared.UsageErrorf("--top-p: %v is out of range; it must be 0 to 1", sampling.TopP)
	case tries > 1 && sampling.Temperature == 0:
		return shared.UsageErrorf("--temperature 0: all %d tries at an exercise would be the same; leave --n out, or choose a temperature above 0", tries)
	}
	return nil
}

// examResults is one language model on all data sets: what eval writes to --output.
type examResults struct {
	Task        string    `json:"task"`
	Model       string    `json:"model"`
	Adapter     string    `json:"adapter,omitempty"`
	Temperature float64   `json:"temperature"`
	TopP        float64   `json:"top_p,omitempty"`
	Seed        uint64    `json:"seed"`
	MaxNew      int       `json:"max_new_tokens"`
	Sets        []examSet `json:"datasets"`
}

// examSet is one data set.
type examSet struct {
	Dataset string `json:"dataset,omitempty"`
	rl.PassScores
	TooLong  int    `json:"too_long"`           // exercises that the model cannot read; they are left out
	Failed   int    `json:"failed_tries"`       // whose exercise did not answer; they count as not right
	Failure  string `json:"failure,omitempty"`  // the first one
	Unjudged int    `json:"unjudged_tries"`     // that may be right or not; they are left out
	Why      string `json:"unjudged,omitempty"` // the first one
	// Of programs: the mean over exercises of the share of tests that the best try passes, and how the tries ended.
	TestRate *float64       `json:"test_rate,omitempty"`
	Classes  map[string]int `json:"classes,omitempty"`
	Rows     []examinedAt   `json:"exercises_tried"`

	tries map[int]rl.Tries // by the index of the exercise
}

// examinedAt is an exercise and the tries at it.
type examinedAt struct {
	Index  int      `json:"index"` // among the exercises, from 0
	Prompt string   `json:"prompt"`
	Truth  string   `json:"truth"`
	Kind   string   `json:"kind,omitempty"`
	Right  int      `json:"right"`
	Tries  []aTry   `json:"tries"`
	infos  rl.Tries // of Tries
}

// aTry is what a model wrote and how it was judged.
type aTry struct {
	Text      string          `json:"text"`
	Correct   bool            `json:"correct"`
	Formatted bool            `json:"formatted"`
	Answer    string          `json:"answer"`
	Tier      string          `json:"tier"`
	Tokens    int             `json:"tokens"` // the model's
	Stop      envs.StopReason `json:"stop"`
	Tests     *envs.Tests     `json:"tests,omitempty"` // of a program
}

// examSlots is how many tries are written at the same time.
const examSlots = 64

// take has a model try the exercises.
func (x exam) take(ctx context.Context, c *cli.Context, model, adapter string) (examResults, error) {
	results := examResults{Task: x.task, Model: model, Adapter: adapter, Temperature: x.sampling.Temperature, TopP: x.sampling.TopP}
	var configs []*config.Config
	for _, name := range x.datasets {
		args := append([]string{"--task=" + x.task, "--mode=" + envs.RLOnly, "--pretrained-model=" + model}, x.settings...)
		if name != "" {
			args = append(args, "--dataset="+name)
		}
		settings, err := config.Load(args, nil)
		if err != nil {
			return results, err
		}
		configs = append(configs, settings)
	}
	p, err := loadLanguageModel(c, model, adapter)
	if err != nil {
		return results, fmt.Errorf("loading %s: %w", model, err)
	}
	defer p.Close()
	sampler, err := p.NewSampler(examSlots)
	if err != nil {
		return results, err
	}
	defer sampler.Close()
	for i, settings := range configs {
		set, err := x.set(ctx, c, sampler, settings)
		if err != nil {
			return results, err
		}
		set.Dataset = x.datasets[i]
		results.Sets = append(results.Sets, set)
		results.Seed, results.MaxNew = settings.General.Seed, settings.Answers.MaxNewTokens
	}
	return results, nil
}

// exercises makes the exercises of a data set, and says how many are to be tried.
func exercises(c *cli.Context, p *policy.CausalLM, settings *config.Config) (envs.Task, int, error) {
	form := settings.Form
	client, done := shared.HubOf(c)
	defer done()
	setup := envs.Setup{
		Context: c.Context, Find: func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error) {
			return shared.FindDataset(ctx, client, name, config, splits...)
		},
		Seed: settings.General.Seed, EvalOnly: true, HeldOut: settings.Answers.EvalSamples,
		Text: form != nil && (form.Form == "short" || form.Form == "auto" && p.Templates == nil),
	}
	task, err := settings.Settings.(envs.EpisodeSource).Task(setup)
	if err != nil {
		return nil, 0, settings.Blame(err)
	}
	if open, ok := task.(envs.Open); ok && open.NoAnswers() != "" {
		return nil, 0, fmt.Errorf("there is nothing to compare answers with: %s", open.NoAnswers())
	}
	n := settings.Answers.EvalSamples
	if all := task.Len(envs.Eval); all > 0 && (n > all || !c.IsSet("eval-samples") && settings.Text("dataset") != "") {
		n = all
	}
	return task, n, nil
}

// set has a model try the exercises of one data set.
func (x exam) set(ctx context.Context, c *cli.Context, sampler *policy.Sampler, settings *config.Config) (examSet, error) {
	set := examSet{tries: map[int]rl.Tries{}}
	task, n, err := exercises(c, sampler.Policy(), settings)
	if err != nil {
		return set, err
	}
	if open, ok := task.(io.Closer); ok {
		defer open.Close()
	}
	tooLong, unjudged := map[int]bool{}, map[[2]int]bool{}
	how := rollout.Config{
		Samples: x.tries, MaxNew: settings.Answers.MaxNewTokens, Sampling: x.sampling, Seed: settings.General.Seed,
		Failed: func(episode, sample int, err error) {
			switch why := fmt.Sprintf("exercise %d: %v", episode, err); {
			case errors.Is(err, rollout.ErrTooLong):
				tooLong[episode] = true
			case errors.Is(err, envs.ErrNotScored):
				unjudged[[2]int{episode, sample}] = true
				set.Unjudged, set.Why = set.Unjudged+1, cmp.Or(set.Why, why)
			default:
				set.Failed, set.Failure = set.Failed+1, cmp.Or(set.Failure, why)
			}
		},
	}
	bar := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now).Bar("evaluating", "exercises", 0, n)
	defer bar.Done()
	step := max(1, 4*examSlots/x.tries) // exercises between two looks at the bar
	var all []rl.Tries
	for begin := 0; begin < n; begin += step {
		var indices []int
		for i := begin; i < min(n, begin+step); i++ {
			indices = append(indices, i)
		}
		played, err := rollout.Play(ctx, sampler, task, envs.Eval, indices, how)
		if err != nil {
			return set, fmt.Errorf("evaluating: %w", err)
		}
		for i, index := range indices {
			if tooLong[index] {
				set.TooLong++
				continue
			}
			judged := slices.DeleteFunc(slices.Clone(played.Groups[i]), func(x *rl.Trajectory) bool { return unjudged[[2]int{index, x.Index}] })
			row, err := examined(ctx, sampler.Policy(), task, index, judged)
			if err != nil {
				return set, err
			}
			set.Rows, all, set.tries[index] = append(set.Rows, row), append(all, row.infos), row.infos
		}
		bar.Set(min(n, begin+step), "")
	}
	switch {
	case len(all) == 0:
		return set, fmt.Errorf("none of the %d exercises leaves room for an answer of %d tokens in the model's %d positions; lower --max-new-tokens, or give fewer worked examples", n, settings.Answers.MaxNewTokens, sampler.Policy().MaxLength())
	case set.Unjudged == len(all)*x.tries:
		return set, fmt.Errorf("none of %d tries could be judged; the first: %s", set.Unjudged, set.Why)
	case set.Failed == len(all)*x.tries:
		return set, fmt.Errorf("none of %d tries could be finished; the first: %s", set.Failed, set.Failure)
	}
	set.PassScores = rl.ScoreTries(all)
	set.countPrograms()
	return set, nil
}

// countPrograms makes the figures of tries that are programs.
func (s *examSet) countPrograms() {
	var best []float64
	for _, row := range s.Rows {
		share, ran := 0.0, false
		for _, one := range row.Tries {
			if one.Tests == nil {
				continue
			}
			if s.Classes == nil {
				s.Classes = map[string]int{}
			}
			s.Classes[one.Tests.Class]++
			share, ran = max(share, float64(one.Tests.Passed)/float64(max(1, one.Tests.Total))), true
		}
		if ran {
			best = append(best, share)
		}
	}
	if len(best) > 0 {
		mean := rl.MeanEstimate(best).Value
		s.TestRate = &mean
	}
}

// examined is an exercise and what came of the tries at it.
func examined(ctx context.Context, p *policy.CausalLM, task envs.Task, index int, group rl.Group) (examinedAt, error) {
	row := examinedAt{Index: index}
	episode, err := task.Episode(envs.Eval, index)
	if err != nil {
		return row, err
	}
	shown, err := episode.Reset(ctx)
	if err != nil {
		return row, err
	}
	if row.Prompt = shown.Text; len(shown.Messages) > 0 {
		row.Prompt = shown.Messages[len(shown.Messages)-1].Content
	}
	for _, x := range group {
		var written []int32
		one := aTry{Stop: x.Stop}
		for i, source := range x.Source {
			if source == rl.Sampled {
				one.Tokens++
			}
			if one.Tokens > 0 {
				written = append(written, x.Tokens[i])
			}
		}
		if one.Text, err = p.Tokenizer.Decode(written, true); err != nil {
			return row, err
		}
		if info := x.Info; info != nil {
			one.Correct, one.Formatted, one.Answer, one.Tier, one.Tests = info.Correct, info.FormatOK, info.Answer, info.FoundBy, info.Tests
			row.Truth, row.Kind = info.Truth, info.Kind
		}
		row.Tries, row.infos = append(row.Tries, one), append(row.infos, x.Info)
	}
	row.Right = row.infos.Correct()
	return row, nil
}
