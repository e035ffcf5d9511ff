package train

import (
	"context"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// tryFile, in logs/, has a few prompts in the form that the policy was trained with.
const tryFile = "try.jsonl"

// tryPrompts is how many they are.
const tryPrompts = 3

// prompt is a row of tryFile, as the command generate reads it.
type prompt struct {
	Prompt   string         `json:"prompt,omitempty"`
	Messages []any          `json:"messages,omitempty"`
	Tools    []any          `json:"tools,omitempty"`
	Args     dataset.Object `json:"chat_template_kwargs,omitempty"`
}

// languageModel writes the model card, prints what came of the stage, and says where the model is and how to try it.
func (t *trainer) languageModel(stage *run.Stage, p *policy.CausalLM, what, lines string, results report.Table) error {
	home := stage.Home()
	if t.verdict != "" && !p.Full() {
		return stage.Printf("%s", lines)
	}
	if _, err := report.WriteCard(stage.Dir(), report.Card{
		Name: filepath.Base(home), Task: t.config.Task.Name, Stage: what, BaseModel: p.BaseModel,
		Adapter: shared.IsAdapter(stage.Dir()), Chat: p.Templates != nil,
		Data: "Trained on " + t.dataName() + ".", Results: results, Settings: report.Settings(t.config.YAML()), Versions: cardVersions(),
	}); err != nil {
		return err
	}
	for line := range strings.Lines(lines) {
		if err := stage.Printf("%s", strings.TrimSuffix(line, "\n")); err != nil {
			return err
		}
	}
	return t.console.Print("Saved in " + home + ". Try: rltrain generate --model " + shared.ShellWord(home) + " --input " + shared.ShellWord(filepath.Join(home, "logs", tryFile)))
}

// trySolving keeps held-out exercises to try the policy with.
func trySolving(ctx context.Context, stage *run.Stage, task envs.Task) error {
	var rows []prompt
	for i := range tryPrompts {
		if n := task.Len(envs.Eval); n > 0 && i >= n {
			break
		}
		shown, err := envs.Show(ctx, task, envs.Eval, i)
		if err != nil {
			return err
		}
		row := prompt{Prompt: shown.Text, Tools: shown.Tools, Args: shown.TemplateArgs}
		for _, m := range shown.Messages {
			row.Messages = append(row.Messages, m)
		}
		rows = append(rows, row)
	}
	return saveRows(stage, rows)
}

// tryRecords keeps the beginnings of training rows of some formats: prompts, or the first words of texts. Rows that
// training has skipped are skipped.
func (t *trainer) tryRecords(ctx context.Context, stage *run.Stage, formats ...chat.Format) error {
	records, err := t.config.Settings.(envs.RecordSource).Records(ctx, t.setup())
	if err != nil {
		return t.config.Blame(err)
	}
	var rows []prompt
	for e, err := range chat.Examples(records.Train, formats...) {
		if err != nil {
			continue
		}
		if row := beginning(e); row.Prompt != "" || row.Messages != nil {
			rows = append(rows, row)
		}
		if len(rows) == tryPrompts {
			break
		}
	}
	return saveRows(stage, rows)
}

// beginning is what a model trained on the example is to be prompted with, empty where there is nothing.
func beginning(e chat.Example) (row prompt) {
	content := e.Prompt
	if e.Format == chat.LanguageModelling {
		content = e.Text
	}
	for _, m := range content.Messages {
		if m.Role() == envs.RoleAssistant && e.Format == chat.LanguageModelling {
			break
		}
		row.Messages = append(row.Messages, dataset.Object(m))
	}
	row.Prompt, row.Tools, row.Args = content.Text, e.Tools, e.TemplateArgs
	if words := strings.Fields(row.Prompt); e.Format == chat.LanguageModelling && len(words) > 0 {
		row.Prompt = strings.Join(words[:(len(words)+3)/4], " ")
	}
	return row
}

func saveRows(stage *run.Stage, rows []prompt) error {
	path, err := stage.File("logs", tryFile)
	if err != nil {
		return err
	}
	return files.SaveLines(path, rows)
}

func cardVersions() []report.Setting {
	return []report.Setting{{Name: "rltrain", Value: shared.Version}, {Name: "libtorch", Value: torch.LibtorchVersion}, {Name: "Go", Value: runtime.Version()}}
}

// exampleLine is a text as one line of standard input.
func exampleLine(text string) string {
	return strings.Join(strings.Fields(text), " ")
}
