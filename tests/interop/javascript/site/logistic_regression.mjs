// The local work: one step of gradient descent over all records, of logistic regression with two classes, as
// the study of tests/interop/test_javascript_site.py asks for it (fedavg, equal weights, one full batch).

const UPDATE = "update";
const BINS = 1024;
const LOSS_BOUND = 2 ** 20;
const COUNT_BOUND = 2 ** 32;
const CLASSES = [0, 1];

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Softmax and loss of one record under weights [2, d] (flat) and biases [2]. */
function predict(weights, biases, x, label) {
  const scores = CLASSES.map((k) => biases[k] + sum(x.map((value, j) => value * weights[k * x.length + j])));
  const most = Math.max(...scores);
  const total = Math.log(sum(scores.map((score) => Math.exp(score - most)))) + most;
  const probabilities = scores.map((score) => Math.exp(score - total));
  return { scores, probabilities, loss: total - scores[label] };
}

export class LogisticRegression {
  bound = 1e6; // protection.broadcast_bound, where the study names none

  /** `records` is {train, test}: lists of {x, label}. `options`: rounds, features, learningRate, names. */
  constructor(records, { rounds, features, learningRate, weight: weightName, bias: biasName, bound, bits }) {
    Object.assign(this, { records, rounds, learningRate, weightName, biasName });
    this.shapes = { [weightName]: [2, features], [biasName]: [2] };
    const scalar = (name, limit) => ({ name, shape: [], bound: limit, bits: 64 });
    const parameters = Object.entries(this.shapes).map(([name, shape]) => ({ name: `${UPDATE}/${name}`, shape, bound, bits }));
    const counts = (name, shape) => ({ name: `eval/${name}`, shape, bound: COUNT_BOUND, bits: 64 });
    const evaluation = [
      counts("records", []), counts("loss", []), counts("class_records", [2]), counts("class_correct", [2]),
      counts("scores", [2, BINS]),
    ];
    const training = [...parameters, scalar("weight", 1), scalar("train_loss", LOSS_BOUND)];
    this.updating = { name: UPDATE, fields: [...training, ...evaluation] };
    this.evaluating = { name: "evaluate", fields: evaluation };
  }

  /** The study's plan: an update in every round, then an evaluation. */
  exchanges(round) {
    if (round < 1 || round > this.rounds + 1) return [];
    return [round <= this.rounds ? this.updating : this.evaluating];
  }

  contribute({ name }, tensors) {
    const [weights, biases] = [tensors[this.weightName].values, tensors[this.biasName].values];
    return { ...this.#evaluate(weights, biases), ...(name === UPDATE ? this.#train(weights, biases) : {}) };
  }

  #train(weights, biases) {
    const { train } = this.records;
    const moved = { weights: weights.map(() => 0), biases: biases.map(() => 0), loss: 0 };
    for (const { x, label } of train) {
      const { probabilities, loss } = predict(weights, biases, x, label);
      moved.loss += loss / train.length;
      for (const k of CLASSES) {
        const slope = ((probabilities[k] - (label === k ? 1 : 0)) * this.learningRate) / train.length;
        moved.biases[k] -= slope;
        x.forEach((value, j) => (moved.weights[k * x.length + j] -= slope * value));
      }
    }
    return {
      [`${UPDATE}/${this.weightName}`]: moved.weights, [`${UPDATE}/${this.biasName}`]: moved.biases,
      weight: [1], train_loss: [moved.loss],
    };
  }

  #evaluate(weights, biases) {
    const scores = new Array(2 * BINS).fill(0);
    const [ofClass, correct] = [[0, 0], [0, 0]];
    let total = 0;
    for (const { x, label } of this.records.test) {
      const { scores: odds, loss } = predict(weights, biases, x, label);
      const stretched = 2 * (odds[1] - odds[0]);
      const position = 0.5 + (0.5 * stretched) / (1 + Math.abs(stretched));
      scores[label * BINS + Math.min(BINS - 1, Math.max(0, Math.trunc(position * BINS)))] += 1;
      ofClass[label] += 1;
      if (label === (odds[1] > odds[0] ? 1 : 0)) correct[label] += 1;
      total += loss;
    }
    return {
      "eval/records": [this.records.test.length], "eval/loss": [total], "eval/class_records": ofClass,
      "eval/class_correct": correct, "eval/scores": scores,
    };
  }
}
