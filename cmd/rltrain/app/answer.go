package app

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/answer"
)

func answerCommand() *cli.Command {
	return &cli.Command{
		Name:      "answer",
		Usage:     "compare an answer with the right one, and say why",
		ArgsUsage: "GOLD ANSWER",
		Description: `Prints "equal" or "different", both answers as they were read, and the rule that decided. By --answer-match math
either may be a whole solution: its answer is looked for behind "the answer is", in \boxed{} and so on. Answers
that begin with a minus go behind --: rltrain answer -- -3 '-\frac{6}{2}'`,
		Flags:  []cli.Flag{&cli.StringFlag{Name: "answer-match", Usage: "rule of the comparison: math, numeric, exact or units", Value: string(answer.Math)}},
		Action: compareAnswers,
	}
}

func compareAnswers(c *cli.Context) error {
	match, err := answer.ParseMatch(c.String("answer-match"))
	if err != nil {
		return shared.UsageErrorf("--answer-match: %v", err)
	}
	gold, text := c.Args().Get(0), c.Args().Get(1)
	verdict, tier := match.Compare(gold, text), answer.ByWhole
	if match == answer.Math {
		verdict, tier = answer.Decide(gold, text)
	}
	word := "different"
	if verdict.Equal {
		word = "equal"
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\ngold    %s\nanswer  %s\nfound   %s\nrule    %s\n", word, verdict.Gold, verdict.Answer, tier, verdict.Rule)
	return err
}
