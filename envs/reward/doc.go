// Package reward parses a list of rewards and computes it.
//
// A list is NAME[=WEIGHT], joined by commas. The total of a sample is Σ weight·reward. NAME is a registered reward or a
// reward of the task. Some take an argument after a colon, some take options in brackets:
//
//	accuracy,expr:'length > 200 ? -1 : 0'=0.5,cmd:./grader=0.2,model:models/preference_reward
//	brief(words=40)=0.1
//
// A weight is a finite number from −1e6 to 1e6 other than 0; the default is 1. Arguments are quoted with ' or ". A shell may
// have removed the quotes: an expression then ends at the next comma outside brackets and string literals, another argument
// at the next comma outside quotes, and a single = starts the weight. Spaces around items are ignored.
//
// [Labels] scores classifiers, whose action is one of a fixed list of labels. [Text] scores completions of language models.
// A reward fails by an error, a timeout or a value that is not finite. The sample then has no total; it never counts as 0.
//
// # Custom rewards
//
// [Register] adds a reward, usually from an init function. [Function] defines a reward by one Go function. The built-in
// rewards are registered in the same way.
//
// # Models
//
// model:DIR is the score of a reward model or classifier: its single output for the prompt and the completion. With
// model:DIR#LABEL it is the probability of a label. For label policies, the completion is the label. [Centre] sets its
// zero.
//
// # Rubrics
//
// rubric:FILE asks a judge, a language model, yes/no questions about the completion. FILE is a list of questions with
// weights, in YAML or JSON:
//
//   - question: Is the answer right?
//     weight: 2
//   - question: Does it insult the reader?
//     weight: -1
//
// The reward is Σ w·P(Yes) / Σ |w|; the default weight is 1.
//
// # Programs
//
// cmd:PROGRAM ARGS starts a program at the first question, in the working directory and without a shell. Spaces separate
// words; words may be quoted. The program reads one JSON question per line, writes one JSON reply per line in any order,
// and exits at end of input. Up to 64 questions are in flight; a line has at most 1 MiB. A question about a text:
//
//	{"id":7,"prompt":"1 + 1?","text":"It is 2.","written":"It is 2.","answer":"2","truth":"2","correct":true,"formatted":false}
//
// text is the turn to score, without the model's thought; written is everything up to its end. If the model thought, thinking is
// the thought and completion the turn with it. answer, truth, correct and formatted are null if the
// task has not verified the episode yet. Episodes of several messages add messages, the conversation so far with its tool calls,
// and episodes with tools add {"tools":{"calls":1,"failed":0,"malformed":0}}. A question about a label:
//
//	{"id":7,"text":"Who may sue?","predicted":"law","label":"law"}
//
// The reply has a finite number, or says why there is none:
//
//	{"id":7,"reward":0.5}
//	{"id":8,"reward":null,"error":"the model is busy"}
//
// The program must flush its output after each line.
//
// Each question has [Options.Timeout], counted from the reply to the one before it, for the first one from the start of
// the program. After a timeout or an invalid line, the question fails, and rltrain kills the program with all processes that it
// started and restarts it for the remaining questions. The first timeout is printed at once ([Options.Warn]). A program and its
// processes end with rltrain, however that ends. A program that exits is restarted too, and gets its open questions again; if it
// exited without any reply, the first of them fails. After three starts in a row without a reply, all questions fail.
// Errors quote the last line of the program's standard error.
package reward
