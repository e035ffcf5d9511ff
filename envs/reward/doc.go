// Package reward turns what a user writes as a list of rewards into numbers.
//
// A list is NAME[=WEIGHT], joined by commas, and the total of a sample is the sum of
// weight·reward. NAME is a registered reward or one of the task's. Some take an argument behind
// a colon, some options in brackets:
//
//	accuracy,expr:'length > 200 ? -1 : 0'=0.5,cmd:./grader=0.2,model:models/preference_reward
//	brief(words=40)=0.1
//
// A weight is a finite number other than 0, from −1e6 to 1e6, and 1 if none is given. An
// argument stands in quotes, ' or ". They may be left out, as a shell may have removed them: an
// expression then ends at the next comma outside of brackets and string literals, any other
// argument at the next comma outside of quotes, and a single = begins the weight. Spaces around
// pieces do not matter.
//
// [Labels] scores classifiers, whose action is one of a fixed list of labels; [Text] scores
// completions of language models. A reward that fails, by an error, by taking too long or with a
// value that is not finite, is missing data: the sample has no total. It never counts as 0.
//
// # Rewards of your own
//
// [Register] adds a reward, usually from an init function; [Function] makes a definition of one
// Go function. The built-in rewards are registered in the same way.
//
// # Models
//
// model:DIR is the score of a reward model, or of a classifier: what its one output says of
// the prompt and what was written, or with model:DIR#LABEL the probability of one of several
// labels. Of a list for labels, the label is what was written. See [Centre] for its zero.
//
// # Rubrics
//
// rubric:FILE asks a judge, a language model, questions to be answered by Yes or No about what
// was written. FILE is a list in YAML or JSON of questions with weights:
//
//   - question: Is the answer right?
//     weight: 2
//   - question: Does it insult the reader?
//     weight: -1
//
// and the reward is Σ w·P(Yes) / Σ |w|, with weight 1 where none is given.
//
// # Programs
//
// cmd:PROGRAM ARGS starts a program at the first question, in the folder of this process and
// without a shell: words are parted by spaces, and may stand in quotes. It reads a question a
// line and writes an answer a line, both JSON, in any order, and ends when its input does. Up
// to 64 questions wait at a time; a line has 1 MiB at most. Asked about a text:
//
//	{"id":7,"prompt":"1 + 1?","text":"It is 2.","written":"It is 2.","answer":"2","truth":"2","correct":true,"formatted":false}
//
// text is the turn to be judged and written all that was written up to its end; answer,
// truth, correct and formatted are null where the task has not judged the episode yet.
// Asked about a label:
//
//	{"id":7,"text":"Who may sue?","predicted":"law","label":"law"}
//
// The answer has a finite number, or says why there is none:
//
//	{"id":7,"reward":0.5}
//	{"id":8,"reward":null,"error":"the model is busy"}
//
// What the program writes must reach its standard output at once: most languages keep lines
// back unless told to flush them.
//
// Each question has [Options.Timeout] from when those before it were answered, the first one
// from the program's start. After it the question has failed, and the program is killed, with
// all that it started in its process group, and started again for the other questions. The
// same happens where it writes something else than an answer. A program that ends is started
// again too, and asked again what it left open; where it ended without any answer, the first
// of its questions has failed. After three starts in a row without an answer all questions
// fail. Errors quote the last line that the program wrote to its standard error.
package reward
