// Package train runs the stages of a training run: it makes the policy, the source of samples and the algorithm that a
// configuration says, and writes what a stage leaves behind.
package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// Stages, as the names of their folders end.
const (
	supervisedStage = "supervised"
	rlStage         = "rl"
)

// trainer carries what the stages of one run share.
type trainer struct {
	config  *config.Config
	command []string
	console *report.Console
	hub     *hub.Client
	group   *dist.Group // the ranks that train together; nil = this process alone
	prompts int         // training prompts of the task; 0 = without end
	stamp   string      // when the run began, in the names of its folders; "" where they have none
	limit   time.Time   // when the run stops between two steps; zero = never
	verdict string      // last line of a run that helped nobody
	trial   *trial      // of a run that is only tried; else nil

	template policy.TemplateSettings // of language models
	sums     map[string]string       // of files and folders that settings name; "" = the name is neither
	inexact  []string                // why the results of earlier stages may differ from an uninterrupted run's
	told     []string                // lines about the data
	telling  sync.Mutex              // of told
}

// Run runs the stages of the configuration's mode, or with --print-config or --dry-run describes them.
func Run(ctx context.Context, c *config.Config) error {
	t := &trainer{config: c, command: os.Args, console: report.NewConsole(os.Stdout, os.Stderr, time.Now)}
	if c.General.PrintConfig {
		text := string(c.YAML())
		for _, note := range slices.Backward(c.Notes()) {
			text = "# " + note + "\n" + text
		}
		return t.console.Print(text)
	}
	if limit, err := c.General.Limit(); err == nil && limit > 0 {
		t.limit = time.Now().Add(limit)
	}
	return t.ranks(ctx, os.Environ())
}

// run trains.
func (t *trainer) run(ctx context.Context) (err error) {
	c := t.config
	defer context.AfterFunc(ctx, t.console.Stopping)()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t.console.OnBroken(stop)
	client, done := shared.NewHub(t.console)
	defer done()
	t.hub = client
	torch.Start(c.General.Threads)
	if err := t.resumable(); err != nil {
		return err
	}
	for _, section := range c.Skipped() {
		if err := t.console.Print("note: ignored in " + c.General.ConfigFile + ": " + section); err != nil {
			return err
		}
	}
	for _, note := range c.Notes() {
		if err := t.console.Print("note: " + note); err != nil {
			return err
		}
	}
	if t.group == nil {
		if err := t.chooseStamp(); err != nil {
			return err
		}
	}
	if err := t.somethingToResume(); err != nil {
		return err
	}
	if t.template, err = t.templateSettings(); err != nil {
		return err
	}
	work := t.text
	switch {
	case c.Pairs != nil:
		work = t.prefer
	case c.Rewarding != nil:
		work = t.rewardModel
	case c.Task.Decides():
		decide, err := t.decide(ctx)
		if err != nil {
			return err
		}
		work = decide.run
	case c.Labels != nil:
		data, err := t.labelledRows(ctx)
		if err != nil {
			return err
		}
		work = (&labelRun{trainer: t, data: data}).run
	}
	// The core is opened before anything is written.
	if err := torch.Open(c.General.Threads); err != nil {
		return err
	}
	if err := t.sameKernels(); err != nil {
		return err
	}
	thread := torch.NewThread()
	defer thread.Close()
	err = thread.Do(ctx, work)
	if errors.Is(err, context.Canceled) {
		err = run.ErrStopped // nothing is lost outside of a stage
	}
	if err == nil && t.verdict != "" {
		err = t.console.Print(t.verdict)
	}
	return errors.Join(err, t.console.Err())
}

// setup is how the task is used.
func (t *trainer) setup() envs.Setup {
	return envs.Setup{Seed: t.config.General.Seed, Tell: t.tell, Find: shared.Finder(t.hub), Reader: dataset.Reader{Progress: t.tell}}
}

// tell prints a line about the data, unless it has been printed: some data is read twice.
func (t *trainer) tell(line string) {
	t.telling.Lock()
	defer t.telling.Unlock()
	if !slices.Contains(t.told, line) {
		t.told = append(t.told, line)
		_ = t.console.Print(line) // an error is the console's own, and comes again
	}
}

// dataName is what the run learns from, for people.
func (t *trainer) dataName() string {
	switch name := t.config.Text("dataset"); {
	case name != "":
		return name
	case t.config.Task.BuiltIn != "":
		return t.config.Task.BuiltIn
	}
	return "problems of " + t.config.Task.Name
}

func (t *trainer) stageDir(stage string) string {
	folder := t.config.Task.Folder
	if folder == "" {
		folder = t.config.Task.Name
	}
	if t.config.Task.Stamped {
		return filepath.Join(t.config.General.OutputDir, t.stamped(stage)+t.stamp)
	}
	return filepath.Join(t.config.General.OutputDir, folder+"_"+stage)
}

// stamped is how the name of a stage's folder begins, where the time follows.
func (t *trainer) stamped(stage string) string {
	if c := t.config; stage == rlStage {
		stage = c.RL.Algorithm
	}
	return t.config.Task.Folder + "_" + stage + "_"
}

// stampLayout sorts as the times do.
const stampLayout = "20060102_150405"

func isStamp(text string) bool {
	_, err := time.Parse(stampLayout, text)
	return err == nil
}

// chooseStamp names the run's folders: those of the newest run of these settings, where it is to be resumed.
func (t *trainer) chooseStamp() error {
	c := t.config
	if !c.Task.Stamped {
		return nil
	}
	t.stamp = time.Now().Format(stampLayout)
	resume, from := c.Resuming()
	if !resume {
		return nil
	}
	newest := ""
	if stamp := filepath.Base(filepath.Dir(filepath.Dir(from))); len(stamp) > len(stampLayout) {
		if stamp = stamp[len(stamp)-len(stampLayout):]; isStamp(stamp) {
			t.stamp = stamp
			return nil
		}
	}
	for stage, has := range map[string]bool{supervisedStage: c.Supervised != nil, rlStage: c.RL != nil} {
		if !has {
			continue
		}
		found, err := filepath.Glob(filepath.Join(c.General.OutputDir, t.stamped(stage)+"*"))
		if err != nil {
			return err
		}
		for _, path := range found {
			stamp := strings.TrimPrefix(filepath.Base(path), t.stamped(stage))
			if isStamp(stamp) {
				newest = max(newest, stamp)
			}
		}
	}
	if newest != "" {
		t.stamp = newest
	}
	return nil
}

// baseModel finds the model of --model.
func (t *trainer) baseModel(ctx context.Context) (hub.Model, error) {
	need := hub.Weights
	if o := t.config.Tokens; o != nil && o.Engine != "" {
		need = hub.NoWeights // the service has them
	}
	model, err := t.hub.Model(ctx, t.config.General.Model, need)
	if err != nil {
		return hub.Model{}, t.config.Errorf("model", "%v", err)
	}
	if err := model.CheckBase(); err != nil {
		return hub.Model{}, t.config.Errorf("model", "%v; to continue from an adapter use --pretrained-model", err)
	}
	return model, nil
}
