package code

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

var languageNames = map[string]string{"python": "Python", "node": "JavaScript", "q": "q", "pepper": "pepper, a language like q"}

// system is the system prompt.
func (t *task) system() string {
	if t.options.instruction != "" {
		return t.options.instruction
	}
	language := languageNames[t.options.Language]
	text := "You are an expert programmer in " + language + ". Write a complete program that can be run as it is."
	if t.options.Reasoning {
		return text + " First think about it in <reasoning>...</reasoning>, then give the program in <answer>...</answer>."
	}
	return text + " Give the program only."
}

// ask is the description of a problem.
func (t *task) ask(p *Problem) string {
	switch {
	case p.Source != "":
		from, to := "Python", languageNames[t.options.Language]
		if t.options.CodeTask == QToPython {
			from = "q"
		}
		return fmt.Sprintf("Translate this program from %s to %s.\n\n%s\n\nWhat it does:\n%s", from, to, strings.TrimSpace(p.Source), strings.TrimSpace(p.Text))
	case t.short:
		return "Complete this function; give the expression that it returns. It should " + p.Text + ".\n\n" + p.Prefix
	case p.Prefix != "":
		return "Complete this program:\n\n```" + t.options.Language + "\n" + strings.TrimRight(p.Prefix, "\n") + "\n```"
	case len(p.Tests) > 0 && p.Tests[0].Assert != "" && !strings.HasPrefix(p.Tests[0].Assert, "w = "):
		return strings.TrimSpace(p.Text) + "\n\nA test of it:\n" + p.Tests[0].Assert
	}
	return strings.TrimSpace(p.Text)
}

// show is the first observation of a problem.
func (t *task) show(p *Problem) envs.Observation {
	switch {
	case t.short && t.asText:
		return envs.Observation{Text: p.Text + "\n", Stop: t.stops(p)}
	case t.asText && p.Prefix != "":
		return envs.Observation{Text: p.Prefix, Stop: t.stops(p)}
	case t.asText:
		return envs.Observation{Text: t.system() + "\n\nHuman: Problem:\n" + t.ask(p) + "\n\nAssistant:", Stop: t.stops(p)}
	}
	return envs.Observation{Messages: []envs.Message{
		{Role: envs.RoleSystem, Content: t.system()}, {Role: envs.RoleUser, Content: "Problem:\n" + t.ask(p)},
	}}
}

// stops are the stop strings for models without a chat template: text after the function's body is not part of the answer.
func (t *task) stops(p *Problem) []string {
	switch {
	case !t.asText:
		return nil
	case t.short:
		return []string{"\n"}
	case p.Prefix != "" && t.options.Language == "python":
		return []string{"\nclass ", "\ndef ", "\n#", "\nif ", "\nprint("}
	}
	return []string{"\n\nHuman:"}
}

// answer wraps a solution in the answer format.
func (t *task) answer(solution string) string {
	if t.asText && !t.options.Reasoning {
		return solution
	}
	block := "```" + t.options.Language + "\n" + strings.Trim(solution, "\n") + "\n```"
	if t.options.Reasoning {
		return "<reasoning>\nThe solution is known.\n</reasoning>\n<answer>\n" + block + "\n</answer>"
	}
	return block
}
