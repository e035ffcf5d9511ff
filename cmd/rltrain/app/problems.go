package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/torch"
)

// problemTasks lists the tasks that evaluate language models.
func problemTasks() []string {
	return tasksWhere(func(d envs.Definition) bool { return d.Plays() && !d.Labels() })
}

// problemFlags are the flags that sample answers to the problems of a task.
func problemFlags() []cli.Flag {
	return slices.Concat(config.OptionFlags(options.MustRead(&problemSampling{})), []cli.Flag{
		&cli.StringFlag{Name: "seed", Usage: "random seed of samples and of generated problems", DefaultText: "42"},
	}, config.ProblemFlags("dataset", "eval_dataset", "answer_match"))
}

// problemSampling is how answers to problems are sampled.
type problemSampling struct {
	Samples     int     `option:"n" default:"1" range:"[1,65536]" help:"language model: samples per problem"`
	Temperature float64 `option:"temperature" range:"[0,1000000]" help:"language model: sampling temperature; 0 = greedy; without it 1 if --n is above 1"`
	TopP        float64 `option:"top_p" range:"[0,1]" help:"language model: nucleus sampling from the top tokens with this total probability; 0 = off"`
}

// samplingOf reads problemSampling.
func samplingOf(c *cli.Context) (samples int, sampling torch.Sampling, err error) {
	samples, sampling = c.Int("n"), torch.Sampling{Temperature: c.Float64("temperature"), TopP: c.Float64("top-p")}
	switch {
	case samples > 1 && !c.IsSet("temperature"):
		sampling.Temperature = 1
	case samples > 1 && sampling.Temperature == 0:
		err = shared.UsageErrorf("--temperature 0: all %d samples of a problem would be equal; use --n 1, or a temperature above 0", samples)
	}
	return samples, sampling, err
}

// joinFlags joins lists of flags. If names repeat, the first flag counts.
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

// flagNames returns the names of flags.
func flagNames(flags []cli.Flag) []string {
	var names []string
	for _, flag := range flags {
		names = append(names, flag.Names()[0])
	}
	return names
}

// onlyFlags rejects given flags that are neither in names nor in lists; to says what they do not apply to.
func onlyFlags(c *cli.Context, to string, names []string, lists ...[]cli.Flag) error {
	names = append(names, flagNames(slices.Concat(lists...))...)
	limit := func(name string) bool { return slices.Contains(config.RowLimits, strings.ReplaceAll(name, "-", "_")) }
	for _, name := range c.FlagNames() {
		if limit(name) && slices.ContainsFunc(names, limit) {
			continue // another name of the one that applies
		}
		if c.IsSet(name) && !slices.Contains(names, name) {
			return shared.UsageErrorf("--%s: does not apply %s", name, to)
		}
	}
	return nil
}

// problemEval evaluates language models on the problems of one or more data sets.
type problemEval struct {
	task     string
	datasets []string // "" for generated problems
	samples  int
	sampling torch.Sampling
	settings []string // options of the task
}

// newProblemEval reads the flags; more may be given too.
func newProblemEval(c *cli.Context, more ...string) (problemEval, error) {
	x := problemEval{task: c.String("task"), datasets: []string{c.String("dataset")}}
	of := append(config.ProblemFlags("dataset", "eval_dataset"), &cli.StringFlag{Name: "seed"})
	if err := onlyFlags(c, "to task "+x.task, append([]string{"task", "dataset", "output"}, more...), languageModelFlags(), problemFlags(), of); err != nil {
		return x, err
	}
	for _, name := range flagNames(of) {
		if c.IsSet(name) {
			x.settings = append(x.settings, fmt.Sprintf("--%s=%v", name, c.Value(name)))
		}
	}
	if name := x.datasets[0]; strings.Contains(name, ",") && !files.Exist(name) { // else the comma is part of the file name
		x.datasets = strings.Split(name, ",")
	}
	var err error
	x.samples, x.sampling, err = samplingOf(c)
	return x, err
}

// problemResults is the content of eval's --output for a language model.
type problemResults struct {
	Task        string       `json:"task"`
	Model       string       `json:"model"`
	Adapter     string       `json:"adapter,omitempty"`
	Temperature float64      `json:"temperature"`
	TopP        float64      `json:"top_p,omitempty"`
	Seed        uint64       `json:"seed"`
	MaxNew      int          `json:"max_new_tokens"`
	Sets        []problemSet `json:"datasets"`
}

// problemSet is the result on one data set.
type problemSet struct {
	Dataset string `json:"dataset,omitempty"`
	rl.PassScores
	TooLong  int    `json:"too_long"`             // skipped problems: they leave no room in the context
	Failed   int    `json:"failed_samples"`       // samples whose episode failed; they count as wrong
	Failure  string `json:"failure,omitempty"`    // first error of those
	Unscored int    `json:"unscored_samples"`     // skipped samples: the reward could not score them
	Why      string `json:"not_scored,omitempty"` // first error of those
	// TestRate is the fraction of tests that the best sample passes, averaged over problems. Classes counts outcomes. Both
	// are for programs only.
	TestRate *float64       `json:"test_rate,omitempty"`
	Classes  map[string]int `json:"classes,omitempty"`
	Rows     []problemRow   `json:"problems_tried"`

	infos       map[int]rl.Attempts // by index of the problem
	skippedRows []sampleRow
}

// problemRow is a problem with its samples.
type problemRow struct {
	Index   int         `json:"index"` // of the problem, from 0
	Prompt  string      `json:"prompt"`
	Truth   string      `json:"truth"`
	Kind    string      `json:"kind,omitempty"`
	Correct int         `json:"correct"` // samples
	Samples []attempt   `json:"samples"`
	infos   rl.Attempts // of Samples
}

// attempt is one sample and its verdict.
type attempt struct {
	Text      string          `json:"text"`
	Correct   bool            `json:"correct"`
	Formatted bool            `json:"formatted"`
	Answer    string          `json:"answer"`
	Tier      string          `json:"tier"`
	Tokens    int             `json:"tokens"` // sampled tokens
	Stop      envs.StopReason `json:"stop"`
	Why       string          `json:"why,omitempty"`   // it is not correct
	Tests     *envs.Tests     `json:"tests,omitempty"` // programs only
	Tools     *envs.ToolUse   `json:"tools,omitempty"` // episodes with tools only
}

// sampleRow is a line of --output-rows.
type sampleRow struct {
	Dataset string `json:"dataset,omitempty"`
	Row     int    `json:"row"`    // of the problem, from 1
	Sample  int    `json:"sample"` // from 1
	Prompt  string `json:"prompt"`
	attempt
	Truth string `json:"truth"`
	Kind  string `json:"kind,omitempty"`
}

// rows are the samples of all data sets, and the problems that were skipped.
func (r problemResults) rows() (all []sampleRow) {
	for _, set := range r.Sets {
		for _, p := range set.Rows {
			for i, one := range p.Samples {
				all = append(all, sampleRow{set.Dataset, p.Index + 1, i + 1, p.Prompt, one, p.Truth, p.Kind})
			}
		}
		for _, s := range set.skippedRows {
			s.Dataset = set.Dataset
			all = append(all, s)
		}
	}
	return all
}

// whyWrong says why a sample is not correct; "" if it is.
func whyWrong(info *envs.Info) string {
	switch {
	case info == nil:
		return "the episode ended without a verdict"
	case info.Correct:
		return ""
	case info.Tests != nil:
		return strings.TrimSuffix(info.Tests.Class+": "+info.Tests.Message, ": ")
	case info.Unfinished:
		return "the answer leaves a calculation to do"
	case info.FoundBy == string(answer.NotFound):
		return "no answer found"
	}
	return "the answer differs"
}

// evalSlots is the number of samples generated at the same time.
const evalSlots = 64

// measure evaluates one model on all data sets.
func (x problemEval) measure(ctx context.Context, c *cli.Context, model, adapter string) (problemResults, error) {
	results := problemResults{Task: x.task, Model: model, Adapter: adapter, Temperature: x.sampling.Temperature, TopP: x.sampling.TopP}
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
	err := withSampler(c, model, adapter, evalSlots, func(sampler *policy.Sampler) error {
		for i, settings := range configs {
			set, err := x.set(ctx, c, sampler, settings)
			if err != nil {
				return err
			}
			set.Dataset = x.datasets[i]
			results.Sets = append(results.Sets, set)
			results.Seed, results.MaxNew = settings.General.Seed, settings.Answers.MaxNewTokens
		}
		return nil
	})
	return results, err
}

// openProblems returns the problems of a data set and the number to evaluate.
func openProblems(c *cli.Context, p *policy.CausalLM, settings *config.Config) (envs.Task, int, error) {
	form := settings.Form
	client, done := shared.HubOf(c)
	defer done()
	template := p.ToolTemplate()
	setup := envs.Setup{
		ToolTemplate: &template,
		Context:      c.Context, Find: shared.Finder(client), Reader: dataReader(c), Seed: settings.General.Seed, EvalOnly: true, HeldOut: settings.Answers.EvalSamples,
		Text: form != nil && (form.Form == "short" || form.Form == "auto" && p.Templates == nil),
	}
	task, err := settings.Settings.(envs.EpisodeSource).Task(setup)
	if err != nil {
		return nil, 0, settings.Blame(err)
	}
	if open, ok := task.(envs.Open); ok && open.NoAnswers() != "" {
		return nil, 0, fmt.Errorf("the data has no answers to compare with: %s", open.NoAnswers())
	}
	n := settings.Answers.EvalSamples
	if all := task.Len(envs.Eval); all > 0 && (n > all || !c.IsSet("eval-samples") && settings.Text("dataset") != "") {
		n = all
	}
	return task, n, nil
}

// set evaluates one model on one data set.
func (x problemEval) set(ctx context.Context, c *cli.Context, sampler *policy.Sampler, settings *config.Config) (problemSet, error) {
	set := problemSet{infos: map[int]rl.Attempts{}}
	task, n, err := openProblems(c, sampler.Policy(), settings)
	if err != nil {
		return set, err
	}
	if open, ok := task.(io.Closer); ok {
		defer open.Close()
	}
	tooLong, unscored, failed := map[int]bool{}, map[[2]int]bool{}, map[[2]int]string{}
	how := rollout.Config{
		Samples: x.samples, MaxNew: settings.Answers.MaxNewTokens, MaxThinking: settings.Answers.MaxThinking, Sampling: x.sampling, Seed: settings.General.Seed,
		Failed: func(episode, sample int, err error) {
			skip := sampleRow{Row: episode + 1, Sample: sample + 1, attempt: attempt{Why: err.Error()}}
			switch why := fmt.Sprintf("problem %d: %v", episode, err); {
			case errors.Is(err, rollout.ErrTooLong):
				if !tooLong[episode] {
					set.skippedRows = append(set.skippedRows, skip)
				}
				tooLong[episode] = true
			case errors.Is(err, envs.ErrNotScored):
				set.skippedRows = append(set.skippedRows, skip)
				unscored[[2]int{episode, sample}] = true
				set.Unscored, set.Why = set.Unscored+1, cmp.Or(set.Why, why)
			default:
				failed[[2]int{episode, sample}] = err.Error()
				set.Failed, set.Failure = set.Failed+1, cmp.Or(set.Failure, why)
			}
		},
	}
	bar := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now).Bar("eval", "problems", 0, n)
	defer bar.Done()
	step := max(1, 4*evalSlots/x.samples) // problems between updates of the bar
	var all []rl.Attempts
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
			judged := slices.DeleteFunc(slices.Clone(played.Groups[i]), func(x *rl.Trajectory) bool { return unscored[[2]int{index, x.Index}] })
			row, err := attemptsAt(ctx, sampler.Policy(), task, index, judged)
			if err != nil {
				return set, err
			}
			for s, x := range judged {
				row.Samples[s].Why = cmp.Or(failed[[2]int{index, x.Index}], row.Samples[s].Why)
			}
			set.Rows, all, set.infos[index] = append(set.Rows, row), append(all, row.infos), row.infos
		}
		bar.Set(min(n, begin+step), "")
	}
	switch {
	case len(all) == 0:
		return set, fmt.Errorf("no problem of %d leaves room for %d new tokens in the context of %d tokens; lower --max-new-tokens, or use fewer few-shot examples", n, settings.Answers.MaxNewTokens, sampler.Policy().MaxLength())
	case set.Unscored == len(all)*x.samples:
		return set, fmt.Errorf("none of %d samples could be scored; first error: %s", set.Unscored, set.Why)
	case set.Failed == len(all)*x.samples:
		return set, fmt.Errorf("all %d samples failed; first error: %s", set.Failed, set.Failure)
	}
	set.PassScores = rl.ScoreAttempts(all)
	set.TestRate, set.Classes = programFigures(all)
	return set, nil
}

// attemptsAt returns a problem with its samples.
func attemptsAt(ctx context.Context, p *policy.CausalLM, task envs.Task, index int, group rl.Group) (problemRow, error) {
	row := problemRow{Index: index}
	shown, err := envs.Show(ctx, task, envs.Eval, index)
	if err != nil {
		return row, err
	}
	if row.Prompt = shown.Text; len(shown.Messages) > 0 {
		row.Prompt = shown.Messages[len(shown.Messages)-1].Content
	}
	for _, x := range group {
		var written []int32
		one := attempt{Stop: x.Stop}
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
		if x.Tools.Offered {
			one.Tools = &x.Tools
		}
		one.Why = whyWrong(x.Info)
		row.Samples, row.infos = append(row.Samples, one), append(row.infos, x.Info)
	}
	row.Correct = row.infos.Correct()
	return row, nil
}
