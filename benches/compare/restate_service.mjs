// A handler of as many durable steps as it is told, for Restate.
// Node 20 lacks a function that the SDK uses.
Promise.withResolvers ??= function () {
  const it = {};
  it.promise = new Promise((resolve, reject) => Object.assign(it, { resolve, reject }));
  return it;
};
const restate = await import("@restatedev/restate-sdk");

const bench = restate.service({
  name: "bench",
  handlers: {
    run: async (ctx, input) => {
      let sum = 0;
      for (let step = 1; step <= input.steps; step++) sum += await ctx.run(`step-${step}`, () => step);
      return sum;
    },
  },
});

restate.serve({ services: [bench], port: Number(process.argv[2]) });
