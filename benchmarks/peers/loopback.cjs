// Preloaded into stdio-to-ws, which listens on all interfaces and has no option for it: every server listens on 127.0.0.1.
const { Server } = require("node:net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (port, ...rest) {
  return typeof port === "number" ? listen.call(this, port, "127.0.0.1", rest.find((one) => typeof one === "function")) : listen.call(this, port, ...rest);
};
